"""Hosts that train by themselves against plain DDP over slow links: bytes, loss at equal samples, time to a loss.

    python -m benchmarks.diloco_netlab [--seeds 3] [--updates 120] [--begun 600] [--contenders diloco:every=20,…]

Needs root (see benchmarks/netlab.py). All train the same byte-level decoder on the standard library's source with the
same initial weights, data order and learning rates, on two hosts with two ranks each, as in training_netlab. They begin
with what plain DDP has learned in `--begun` updates, as hosts that are to train by themselves do in the paper (arXiv
2311.08105); these it trains over links without a limit, with an order of the data that no run has. A contender is
`diloco` with its settings: every, fragments, overlap, mix, outer_lr, outer_momentum, and codec, that of the outer
gradients. It is evaluated with the outer parameters; what its last update takes holds the synchronization that
concludes a run. Bytes are counted at the host's network interface. The target is the validation loss that plain DDP
ends with; a contender that is behind may train somewhat longer to reach it, in a run of its own.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.netlab import Netlab
from benchmarks.training_contenders import CLIP, count, train
from benchmarks.training_job import Batches, Job, Run, mean_loss, validation_loss
from benchmarks.training_netlab import FLOOR_UPDATES, LONGER, Crew, with_samples
from benchmarks.training_rows import Row, merged, row, show, time_to
from gradwire.comm import AllReduce
from gradwire.trainer.strategies import DiLoCo

AVERAGED = "diloco:every=20:outer_lr=1:outer_momentum=0"
CONTENDERS = f"{AVERAGED},{AVERAGED}:codec=int8,diloco:every=20"
CUT, LOSS, SPEED = 0.9, 0.02, 3.0  # what is asked for: bytes cut by CUT·every, loss within LOSS, SPEED times faster


@dataclass(frozen=True)
class Apart:
    """A contender: the name says how it trains."""

    name: str
    every: int = 100
    fragments: int = 1
    overlap: int = 0
    mix: float = 0.5
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    codec: str = "none"

    @classmethod
    def parse(cls, name: str) -> "Apart":
        """What a name such as diloco:every=20:codec=int4 stands for.

        Raises:
            ValueError: Nothing.
        """
        kind, *settings = name.split(":")
        given = dict(setting.split("=", 1) for setting in settings if "=" in setting)
        kinds = {field: type(value) for field, value in asdict(cls("")).items() if field != "name"}
        if kind != "diloco" or len(given) != len(settings) or not given.keys() <= kinds.keys():
            raise ValueError(f"{name!r} is no contender; expected diloco[:SETTING=VALUE]… with {', '.join(kinds)}")
        return cls(name, **{field: kinds[field](value) for field, value in given.items()})

    def strategy(self, job: Job) -> DiLoCo:
        """A collective once its model is prepared."""
        codecs = {} if self.codec == "none" else {"node": self.codec}
        return DiLoCo(
            AllReduce(job.topology(), "two_shot", codecs),
            torch.device("cpu"),
            every=self.every,
            fragments=self.fragments,
            overlap=self.overlap,
            mix=self.mix,
            outer_lr=self.outer_lr,
            outer_momentum=self.outer_momentum,
        )


def train_apart(rank: int, job: Job) -> Run:
    """One run on one rank; `job.contender` says how. A collective."""
    mean_loss(job.model(), Batches(job, rank, 1)[0]).backward()  # type: ignore[no-untyped-call]  # loads what torch loads
    apart = Apart.parse(job.contender)
    model, run, strategy = job.model(), Run(), apart.strategy(job)
    strategy.prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    strategy.bind(model, optimizer)
    batches = Batches(job, rank, job.updates)
    for update in range(job.updates):
        if job.every and update % job.every == 0:
            run.losses.append((update, _validate(strategy, model, rank, job)))
        count(run, 1 / job.updates, partial(_update, strategy, model, optimizer, batches, update, job))
    if job.every:
        run.losses.append((job.updates, _validate(strategy, model, rank, job)))
    dist.barrier()
    strategy.close()
    return run


def _validate(strategy: DiLoCo, model: nn.Module, rank: int, job: Job) -> float:
    with strategy.evaluating():
        return validation_loss(model, rank, job)


def _update(
    strategy: DiLoCo, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, update: int, job: Job
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = job.rate(update)
    (mean_loss(model, batches[update]) / job.ranks_per_host).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    strategy.settle(kept=True)
    optimizer.zero_grad()
    if update + 1 == job.updates:
        strategy.conclude()


def campaign(crew: Crew, contenders: Sequence[Apart], job: Job, seeds: int) -> dict[str, Any]:
    """Train everything, one seed after the other: at equal samples, and longer where the target was not reached."""
    floor = merged(crew(train, replace(job, contender="floor", updates=FLOOR_UPDATES, every=0)))
    runs: dict[str, list[Run]] = {"ddp": [], **{each.name: [] for each in contenders}}
    longer: dict[str, list[Run]] = {each.name: [] for each in contenders}
    more = -(-round(job.updates * LONGER) // job.every) * job.every
    for seed in range(seeds):
        seeded = replace(job, seed=seed)
        runs["ddp"].append(merged(crew(train, seeded)))
        for each in contenders:
            named = replace(seeded, contender=each.name)
            runs[each.name].append(merged(crew(train_apart, named)))
            crew.renew()
            if time_to(runs["ddp"][-1].losses[-1][1], runs[each.name][-1]) is None:
                longer[each.name].append(merged(crew(train_apart, replace(named, updates=more))))
                crew.renew()
            else:
                longer[each.name].append(runs[each.name][-1])
            print(f"  seed {seed} {each.name}: {runs[each.name][-1].losses[-1][1]:.4f}", flush=True)
    rows = {name: row(each, runs["ddp"], floor, job.updates) for name, each in runs.items()}
    rows |= {f"{name}, longer": row(each, runs["ddp"], floor, job.updates) for name, each in longer.items()}
    show(rows, floor, job.updates)
    verdicts = {
        each.name: verdict(each, rows["ddp"], rows[each.name], rows[f"{each.name}, longer"]) for each in contenders
    }
    return {
        "job": {**asdict(job), "start": None if job.start is None else job.start.name},
        "rows": {name: asdict(each) for name, each in rows.items()},
        "verdicts": verdicts,
        "floor": asdict(floor),
        "runs": {name: [asdict(run) for run in each] for name, each in (runs | _renamed(longer)).items()},
    }


def _renamed(longer: dict[str, list[Run]]) -> dict[str, list[Run]]:
    return {f"{name}, longer": runs for name, runs in longer.items()}


def verdict(apart: Apart, ddp: Row, equal: Row, longer: Row) -> dict[str, Any]:
    """What was asked for and what was found, printed: bytes, loss at equal samples, time to the loss."""
    cut = ddp.sent / equal.sent
    worst = max(equal.difference)
    speed = equal.speedup if equal.speedup is not None else longer.speedup
    found = {
        "bytes_cut": cut,
        "bytes_asked": CUT * apart.every,
        "loss_difference": worst,
        "speed": speed,
        "ddp_waits": ddp.waiting,
        "met": cut >= CUT * apart.every and worst <= LOSS and speed is not None and speed >= SPEED,
    }
    print(
        f"  {apart.name}: bytes ÷ {cut:.1f} (asked {CUT * apart.every:.0f}), loss {100 * worst:+.2f} % at worst (asked "
        f"{100 * LOSS:.0f}), {'target not reached' if speed is None else f'{speed:.2f}× as fast'} to ddp's loss (asked "
        f"{SPEED:.0f}), where ddp waits {ddp.waiting:.0%}: {'met' if found['met'] else 'NOT met'}"
    )
    return found


def begin(job: Job, updates: int, file: Path) -> Path:
    """The file, with the weights of so many updates of plain DDP over links without a limit."""
    with Netlab(job.hosts, None) as lab, Crew(lab, job.ranks_per_host) as crew:
        crew(train, replace(job, updates=updates, every=0), file)
    return file


def _contenders(text: str) -> tuple[Apart, ...]:
    try:
        return tuple(Apart.parse(name) for name in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--rate", default="200mbit", help="of each host's link")
    parser.add_argument("--contenders", type=_contenders, default=_contenders(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=120)
    parser.add_argument("--begun", type=int, default=600, help="updates of plain DDP before; 0 for fresh weights")
    parser.add_argument("--every", type=int, default=20, help="updates between evaluations; they divide the updates")
    parser.add_argument("--samples", type=int, help="of a rank and update; chosen if not given")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--begun-lr", type=float, default=5e-4, help="of the updates before")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--validation", type=int, default=256, help="windows")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.updates % options.every or options.updates < options.every:
        parser.error("--every must divide --updates")
    if reason := Netlab.requirements():
        parser.exit(1, f"no laboratory: {reason}\n")
    shared = ("updates", "every", "hosts", "ranks_per_host", "width", "layers", "context", "lr", "validation")
    job = Job("ddp", 0, **{name: getattr(options, name) for name in shared}, samples=options.samples or 1)
    assert job.data().train and job.data().validation  # made here once, not by all ranks at once
    parameters = job.parameters
    print(f"{parameters:,} parameters, {options.hosts} × {options.ranks_per_host} ranks, {options.rate}", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        Netlab(options.hosts, options.rate) as lab,
        Crew(lab, options.ranks_per_host) as crew,
    ):
        assert lab.bytes_per_second is not None
        if options.samples is None:
            job = with_samples(crew, job, lab.bytes_per_second)
        if options.begun:
            crew.renew()
            before = replace(job, seed=options.seeds, lr=options.begun_lr)
            job = replace(job, start=begin(before, options.begun, Path(folder) / "start.safetensors"))
        results = campaign(crew, options.contenders, job, options.seeds)
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "rate": options.rate,
                    "parameters": parameters,
                    "begun": options.begun,
                    "begun_lr": options.begun_lr,
                    **results,
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    from benchmarks.diloco_netlab import main  # what ranks call must not lie in __main__

    main()
