"""What a rank does in a case of benchmarks/comm_failures.py, with the blow planted on the victim."""

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.comm_failure_cases import Case
from gradwire.comm import AllReduce, CommError, Topology, attach, staged

TIMEOUT = 3.0  # seconds that a peer may keep another waiting
CALLS = 4
ELEMENTS = 200_003  # four segments


def live(case: Case, rank: int, port: int, report: int) -> None:
    """A rank's whole life but its exit; it reports on a pipe the blow, and then how it ended."""
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
