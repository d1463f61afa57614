"""What a rank that dies or stalls does to the others: an error with a name in time, or a hang.

python benchmarks/comm_failures.py [--json results.json] [--cases 50] [--seed 0] [--phase codec]

Every case is a job of its own: processes joined by gloo make the same calls, and one of them is planted a signal that
strikes it in a given phase. Each other one must raise CollectiveError that names axis, rank and round (under the
backend's own all-reduce: what failed and the rank) within the time-out, and end like any Python process.
"""

import argparse
import json
import math
import os
import random
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gradwire.comm import AllReduce, CommError, Topology, attach, staged

TIMEOUT = 3.0  # seconds that a peer may keep another waiting
MARGIN = 2.0  # what a busy machine may add
PATIENCE = 40.0  # after which a rank hangs
ATTEMPTS = 5
CALLS = 4
ELEMENTS = 200_003  # four segments

PHASES = (
    "idle",
    "first reduce-scatter",
    "last reduce-scatter",
    "first all-gather",
    "last all-gather",
    "codec",
    "between buckets",
    "group creation",
    "attach",
    "native idle",
    "native under way",
)
TOPOLOGIES = ({"ring": 2}, {"ring": 3}, {"local": 2, "node": 2}, {"local": 3, "node": 2}, {"x": 2, "y": 2, "z": 2})
ALGORITHMS = ("ring", "bidirectional_ring", "two_shot", "halving_doubling")
CODECS = ("", "int8", "int4", "top_k", "sign")
MOMENTS = ("before start", "after start", "before finish", "after finish")


@dataclass(frozen=True)
class Case:
    """One job: who is struck by what, when."""

    phase: str
    signal: str
    axes: dict[str, int]
    algorithm: str
    codec: str
    rotate: bool
    victim: int
    moment: str
    segment: int
    sockets: bool  # gloo's, also between neighbors

    @property
    def ranks(self) -> int:
        return Topology(**self.axes).size

    @property
    def native(self) -> bool:
        return self.phase.startswith("native")


@dataclass(frozen=True)
class Outcome:
    """What became of a case: for each survivor its error (or None), seconds from the blow to it, and exit status."""

    case: Case
    errors: list[str | None]
    seconds: list[float | None]
    exits: list[int | None]
    struck: bool
    named: bool
    in_time: bool
    blamed: int

    @property
    def good(self) -> bool:
        return self.named and self.in_time and not any(self.exits)


def draw(cases: int, seed: int, phases: tuple[str, ...] = PHASES) -> list[Case]:
    """Random cases; every phase with both signals comes as often as any other."""
    chooser = random.Random(seed)
    kinds = [(phase, blow) for phase in phases for blow in ("SIGKILL", "SIGSTOP")]
    drawn = []
    for number in range(cases):
        phase, blow = kinds[number % len(kinds)]
        axes = chooser.choice(TOPOLOGIES)
        codec = chooser.choice(CODECS[1:] if phase == "codec" else CODECS)
        drawn.append(
            Case(
                phase=phase,
                signal=blow,
                axes=axes,
                algorithm=chooser.choice(ALGORITHMS),
                codec="" if phase.startswith("native") else codec,
                rotate=chooser.random() < 0.25,
                victim=chooser.randrange(Topology(**axes).size),
                moment=chooser.choice(MOMENTS),
                segment=chooser.randrange(8),
                sockets=number // 2 % 2 == 1,
            )
        )
    return drawn


def _strike_in(owner: Any, method: str, strike: Callable[[], None], spared: int, before: bool) -> None:
    """Have `strike` called before or after `owner.method` when that has been called `spared` times."""
    inner, uses = getattr(owner, method), count()

    def planted(*arguments: Any) -> None:
        due = next(uses) >= spared
        if due and before:
            strike()
        inner(*arguments)
        if due:
            strike()

    setattr(owner, method, planted)


def _plant(all_reduce: AllReduce, case: Case, strike: Callable[[], None]) -> None:
    """Put the signal into the phase."""
    (engine,) = all_reduce._engines
    lane = engine._lanes[0]
    when, method = case.moment.split()
    before = when == "before"
    if case.phase == "codec":
        coded = [stage for stage in lane.stages if hasattr(stage, "codec")]
        _strike_in(coded[case.segment % len(coded)], "_encode", strike, case.segment // 2, before)
        return
    middle = len(lane.stages) // 2
    places = {"first reduce-scatter": 0, "last reduce-scatter": middle - 1, "first all-gather": middle}
    place = places.get(case.phase, len(lane.stages) - 1)
    _strike_in(lane.stages[place], method, strike, case.segment, before)


def _work(case: Case, rank: int, strike: Callable[[], None]) -> None:
    """What every rank does; on the victim `strike` never returns."""
    struck = rank == case.victim
    if case.sockets:
        setattr(staged, "find", lambda *_: None)  # noqa: B010 - a type checker knows it as an import
    topology = Topology(**case.axes)
    codecs = {list(case.axes)[-1]: case.codec} if case.codec else {}
    algorithm: Any = "native" if case.native else case.algorithm
    all_reduce = AllReduce(topology, algorithm, codecs, None, 0.2, case.rotate, TIMEOUT)
    if struck and case.phase == "group creation":
        strike()
    values = torch.randn(ELEMENTS)
    if case.phase in ("attach", "between buckets"):
        _train(all_reduce, case, strike if struck else None)
        return
    all_reduce(values)
    dist.barrier()
    if struck:
        if "idle" in case.phase:
            strike()
        elif case.native:
            all_reduce(values, async_op=True)
            strike()
        elif case.phase != "group creation":
            _plant(all_reduce, case, strike)
    for _ in range(CALLS):
        all_reduce(values)


def _train(all_reduce: AllReduce, case: Case, strike: Callable[[], None] | None) -> None:
    model = nn.Sequential(*(nn.Linear(160, 160) for _ in range(8)))
    if strike is not None and case.phase == "attach":
        strike()
    attach(model, all_reduce, bucket_mb=0.15)
    for step in range(CALLS):
        if step == 1 and strike is not None:
            layer = model[1 + case.segment % 4]
            layer.weight.register_hook(lambda _: strike())  # type: ignore[no-untyped-call]
        model(torch.randn(4, 160)).square().mean().backward()


def _rank(case: Case, rank: int, port: int, report: int) -> None:
    """A rank's whole life but its exit."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    limit = timedelta(seconds=TIMEOUT)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=case.ranks, timeout=limit)
    dist.barrier()

    def strike() -> None:
        os.write(report, json.dumps({"struck": time.monotonic()}).encode())
        os.kill(os.getpid(), getattr(signal, case.signal))
        time.sleep(1e6)

    answer: dict[str, Any] = {"error": None}
    try:
        _work(case, rank, strike)
    except CommError as error:
        answer = {"error": str(error), "class": type(error).__name__}
    os.write(report, json.dumps({**answer, "at": time.monotonic()}).encode())


def _fork(work: Callable[[], None]) -> int:
    """The number of a new process that does `work` and then exits as Python does."""
    number = os.fork()
    if number == 0:
        os.setpgid(0, 0)
        work()
        sys.exit(0)
    return number


def run(case: Case) -> Outcome:
    """Play one case; afterwards all its processes are gone."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes = [os.pipe() for _ in range(case.ranks)]

    def serve() -> None:  # as an agent does: the store outlives the ranks
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        time.sleep(10 * PATIENCE)
        del store

    agent = _fork(serve)
    ranks = [_fork(lambda rank=rank: _rank(case, rank, port, pipes[rank][1])) for rank in range(case.ranks)]  # type: ignore[misc]
    try:
        struck = _answer(pipes[case.victim][0]).get("struck", math.nan)
        survivors = [rank for rank in range(case.ranks) if rank != case.victim]
        answers = [_answer(pipes[rank][0]) for rank in survivors]
        exits = [_exit(ranks[rank]) for rank in survivors]
    finally:
        for number in (*ranks, agent):
            _end(number)
        for pipe in pipes:
            os.close(pipe[0])
            os.close(pipe[1])
    errors = [answer.get("error") for answer in answers]
    seconds = [answer["at"] - struck if "at" in answer else None for answer in answers]
    return Outcome(
        case,
        errors,
        seconds,
        exits,
        struck=not math.isnan(struck),
        named=all(answer.get("class") == "CollectiveError" and _names(case, answer["error"]) for answer in answers),
        in_time=all(each is not None and each < TIMEOUT + MARGIN for each in seconds),
        blamed=sum(bool(re.search(rf"\brank {case.victim}\b", error or "")) for error in errors),
    )


def _names(case: Case, error: str) -> bool:
    """Whether it says what failed and who: with our own rounds axis, rank and round."""
    axis = "|".join(case.axes)
    if case.native or case.phase in ("attach", "group creation"):
        return bool(re.search(r"(all-reduce|group|broadcast).* on rank \d", error))
    return bool(re.search(rf"round \d+ of \d+ of the [a-z-]+.* along ({axis}) failed on rank \d", error))


def _answer(pipe: int) -> dict[str, Any]:
    """What a rank reports; empty where it hangs."""
    if not select.select([pipe], [], [], PATIENCE)[0]:
        return {}
    answer: dict[str, Any] = json.loads(os.read(pipe, 1 << 16))
    return answer


def _exit(number: int) -> int | None:
    """A process's exit status, negative for a signal; None where it hangs."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found, status = os.waitpid(number, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def _end(number: int) -> None:
    try:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def table(outcomes: list[Outcome]) -> str:
    """Phase × signal: cases with a named error in time, of how many, and the slowest; whom they blamed."""
    lines = [f"{'phase':24}{'signal':10}{'named in time':>14}{'hangs':>7}{'bad exits':>11}{'slowest':>9}{'blamed':>9}"]
    for phase in PHASES:
        for blow in ("SIGKILL", "SIGSTOP"):
            mine = [each for each in outcomes if (each.case.phase, each.case.signal) == (phase, blow)]
            if not mine:
                continue
            seconds = [second for each in mine for second in each.seconds if second is not None]
            survivors = sum(len(each.errors) for each in mine)
            lines.append(
                f"{phase:24}{blow:10}{sum(each.named and each.in_time for each in mine):>8} of {len(mine):<3}"
                f"{sum(None in each.seconds or None in each.exits for each in mine):>7}"
                f"{sum(any(each.exits) for each in mine):>11}{max(seconds, default=0):>8.1f}s"
                f"{sum(each.blamed for each in mine):>5}/{survivors}"
            )
    return "\n".join(lines)


def _until_struck(case: Case) -> Outcome:
    """Again where the machine was too busy to come as far as the blow within the time-out."""
    for _ in range(ATTEMPTS):
        outcome = run(case)
        if outcome.struck:
            break
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phase", choices=PHASES, action="append")
    options = parser.parse_args()
    outcomes = []
    for case in draw(options.cases, options.seed, tuple(options.phase or PHASES)):
        outcomes.append(_until_struck(case))
        if not outcomes[-1].good:
            print(outcomes[-1], file=sys.stderr)
    print(table(outcomes))
    if options.json:
        options.json.write_text(json.dumps([asdict(each) | {"good": each.good} for each in outcomes], indent=1))
    sys.exit(0 if all(each.good for each in outcomes) else 1)


if __name__ == "__main__":
    main()
