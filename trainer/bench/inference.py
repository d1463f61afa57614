"""`gradwire bench inference` on one rank: the contest of generation, its tables and its JSON."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.inference import Caching
from gradwire.trainer.assemble import build_model
from gradwire.trainer.bench.errors import BenchUsageError
from gradwire.trainer.bench.inference_batching import Batching, workload
from gradwire.trainer.bench.inference_batching import measure as measure_batching
from gradwire.trainer.bench.inference_memory import peaks, usable_share
from gradwire.trainer.bench.inference_models import ANEW, OURS, Contender, contenders, ours
from gradwire.trainer.bench.inference_rows import (
    Growth,
    Row,
    batching_line,
    contest_lines,
    growth,
    growth_lines,
    memory_lines,
    rows,
)
from gradwire.trainer.bench.running import Stopped, conclude, pulse, say, write_json
from gradwire.trainer.launch.context import WorkerContext
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.models import Decoder
from gradwire.trainer.worker import main

PROGRAM = ("-m", "gradwire.trainer.bench.inference")
_POOL = (512, 16, 16, 1024)  # blocks, tokens of one, shortest and longest sequence
_TURNS = 200
_AGREE = 1e-3  # of logits: two ways to compute the same model


@dataclass(frozen=True)
class Findings:
    """All that was measured.

    Attributes:
        parameters: Of the model.
        device: Kind of device.
        threads: CPU threads.
        torch: Version.
        prompt: Tokens of each prompt.
        new: New tokens of each.
        batches: By batch size, the contenders.
        growth: By kind, how time grows with length, at batch 1.
        peak: By kind of cache, the most bytes beside the weights.
        usable: Share of the paged pool that random lengths fill: median and least.
        batching: Continuous against static.
        unavailable: Why a contender did not take part.
        wrong: What was wrong with results, a line each.
    """

    parameters: int
    device: str
    threads: int
    torch: str
    prompt: int
    new: int
    batches: dict[str, dict[str, Row]]
    growth: dict[str, Growth]
    peak: dict[str, int]
    usable: tuple[float, float]
    batching: Batching
    unavailable: dict[str, str]
    wrong: list[str]


def measure(config: Mapping[str, Any], context: WorkerContext) -> int:
    """Measure on this rank, the only one. The exit code.

    Raises:
        BenchUsageError: several ranks, another model than the built-in decoder, or one with too short a context.
        WrongResultError: a contender computed something else; all others were told before.
    """
    if context.world_size > 1:
        raise BenchUsageError("bench inference measures one process: leave launch.processes at 1.")
    model = build_model(dict(config), context.allow)
    if not isinstance(model, Decoder):
        raise BenchUsageError(f"bench inference measures the built-in decoder, not {type(model).__name__}.")
    try:
        findings = _Bench(model.to(context.device).eval(), context).run()
    except Stopped:
        return int(ExitCode.PREEMPTED)
    write_json(findings, context.arguments)
    return conclude(findings.wrong, context)


class _Bench:
    """The steps of the contest."""

    def __init__(self, model: Decoder, context: WorkerContext) -> None:
        self._model, self._context, self._told = model, context, context.arguments
        self._prompt, self._new = self._told["prompt"], self._told["new"]
        self._contenders, self._unavailable = contenders(model, self._told["compile"])
        self._check_context()

    def run(self) -> Findings:
        parameters = sum(each.numel() for each in self._model.parameters())
        say(
            f"{parameters / 1e6:,.1f} M parameters on {self._context.device}, {torch.get_num_threads()} threads; "
            f"{self._prompt} tokens of prompt, {self._new} new ones, {self._told['rounds']} alternated rounds"
        )
        for name, reason in self._unavailable.items():
            say(f"{name} is not available: {reason}")
        batches = {str(batch): self._contest(batch) for batch in self._told["batches"]}
        curves = self._growth()
        peak = peaks(self._model, 1, self._prompt, self._new)
        usable = usable_share(*_POOL, _TURNS)
        say("\n".join(memory_lines(peak, usable)))
        batching = self._batching()
        wrong = [f"{name}: {fault}" for name, fault in self._faults().items()]
        return Findings(
            parameters,
            self._context.device.type,
            torch.get_num_threads(),
            torch.__version__,
            self._prompt,
            self._new,
            batches,
            curves,
            peak,
            usable,
            batching,
            self._unavailable,
            wrong,
        )

    def _contest(self, batch: int) -> dict[str, Row]:
        prompt_BT = self._ids(batch, self._prompt)
        seconds: dict[str, list[float]] = {name: [] for name in self._contenders}
        names = list(self._contenders)
        first = {name: self._timed(self._contenders[name], prompt_BT, self._new) for name in names}
        for number in range(self._told["rounds"]):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                pulse(self._context, f"{name} at batch {batch}")
                seconds[name].append(self._timed(self._contenders[name], prompt_BT, self._new))
        table = rows(seconds, batch * self._new, first)
        say("\n".join(contest_lines(batch, table)))
        return table

    def _growth(self) -> dict[str, Growth]:
        ways = {OURS: ours(self._model, Caching()), ANEW: ours(self._model, Caching(kind="none"))}
        prompt_BT = self._ids(1, 1)
        found: dict[str, dict[int, float]] = {name: {} for name in ways}
        for tokens in self._told["lengths"]:
            for name, way in ways.items():
                pulse(self._context, f"{name}, {tokens} tokens")
                found[name][tokens] = self._timed(way, prompt_BT, tokens - 1)
        curves = {name: growth(seconds) for name, seconds in found.items()}
        say("\n".join(growth_lines(curves)))
        return curves

    def _batching(self) -> Batching:
        pulse(self._context, "batching")
        requests = workload(self._told["requests"], self._longest, self._model.vocabulary)
        found = measure_batching(self._model, requests, self._told["rows"], max(2, self._told["rounds"] // 2))
        say(batching_line(found))
        return found

    @torch.no_grad()
    def _faults(self) -> dict[str, str]:
        """Contenders whose tokens are not likeliest by the plain model, beyond rounding."""
        prompt_BT = self._ids(self._told["batches"][0], self._prompt)  # a size that was compiled for
        faults = {}
        for name, contender in self._contenders.items():
            if name.endswith("int8"):  # another function, within what eight bits lose
                continue
            new_BN = contender(prompt_BT, self._new).to(prompt_BT.device)
            logits_BTV = self._model(torch.cat([prompt_BT, new_BN], 1)[:, :-1])[:, -self._new :]
            behind = (logits_BTV.amax(-1) - logits_BTV.gather(-1, new_BN[..., None])[..., 0]).max().item()
            if not behind <= _AGREE:
                faults[name] = f"a token's logit is {behind:.3g} below the likeliest one's"
        return faults

    def _timed(self, contender: Contender, prompt_BT: Tensor, new: int) -> float:
        started = time.perf_counter()
        contender(prompt_BT, new)
        if prompt_BT.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    def _ids(self, batch: int, tokens: int) -> Tensor:
        generator = torch.Generator().manual_seed(batch)
        return torch.randint(0, self._model.vocabulary, (batch, tokens), generator=generator).to(self._context.device)

    @property
    def _longest(self) -> int:
        longest: int = self._prompt + self._new
        return longest

    def _check_context(self) -> None:
        lengths: Sequence[int] = self._told["lengths"]
        if len(lengths) < 2:
            raise BenchUsageError("--lengths needs two lengths at least, for there to be a growth.")
        longest = max(self._longest, *lengths)
        if longest > self._model.context:
            raise BenchUsageError(f"{longest} tokens are more than the model's context, {self._model.context}.")


if __name__ == "__main__":
    main(body=measure)
