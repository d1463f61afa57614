"""How much of the time that gradients take on the link hides behind backward, see benchmarks/training_netlab.py.

The micro-batch is chosen so that backward takes as long as the reduction alone; only backward has something to hide it
behind. Updates with and without communication take turns, and a reduction alone after each pair. Hidden is
1 − (with − without) / alone. Processor time cannot hide where all cores are busy: `of the waiting` leaves it out, on
both sides of the fraction, spread over the cores.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.training_contenders import Ours, contender
from benchmarks.training_job import Batches, Job, mean_loss, processor_seconds
from gradwire.comm.benchmark import interval

SKIPPED = 2  # first rounds
MOST_SAMPLES = 256


@dataclass
class Overlap:
    """One rank's seconds by round, and its processor seconds, of an update with and without communication and of the
    reduction alone; and of backward alone, seconds."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in KINDS})
    processor: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in KINDS})


KINDS = ("with", "without", "backward", "alone")


def measure_overlap(rank: int, job: Job) -> Overlap:
    """`job.updates` rounds on one rank. A collective."""
    model, each, found = job.model(), contender(job.contender), Overlap()
    assert isinstance(each, Ours)
    each.wrap(model, job)
    batch = Batches(job, rank, 1)[0]
    for turn in range(job.updates):
        for kind in KINDS if turn % 2 == 0 else reversed(KINDS):
            action = _prepared(kind, model, each, batch)
            dist.barrier()
            processor, start = processor_seconds(), time.perf_counter()
            action()
            dist.barrier()
            found.seconds[kind].append(time.perf_counter() - start)
            found.processor[kind].append(processor_seconds() - processor)
            model.zero_grad()
    dist.barrier()
    each.leave()
    return found


def _prepared(kind: str, model: nn.Module, each: Ours, batch: dict[str, torch.Tensor]) -> Callable[[], object]:
    if kind == "with":
        return lambda: mean_loss(model, batch).backward()  # type: ignore[no-untyped-call]
    if kind == "without":
        return lambda: _without(model, each, batch)
    with each.reducer.no_sync():
        loss = mean_loss(model, batch)
        if kind == "backward":
            return lambda: _quietly(each, loss)
        loss.backward()  # type: ignore[no-untyped-call]
    return each.reducer.reduce


def _without(model: nn.Module, each: Ours, batch: dict[str, torch.Tensor]) -> None:
    with each.reducer.no_sync():
        mean_loss(model, batch).backward()  # type: ignore[no-untyped-call]


def _quietly(each: Ours, loss: torch.Tensor) -> None:
    with each.reducer.no_sync():
        loss.backward()  # type: ignore[no-untyped-call]


def show_overlap(
    crew: Callable[..., list[Any]], names: Sequence[str], job: Job, rounds: int
) -> dict[str, dict[str, Any]]:
    """Balance, measure and print, for each contender."""
    cores = len(os.sched_getaffinity(0))
    results: dict[str, dict[str, Any]] = {}
    print(
        f"  {'':20}{'samples':>8}{'backward':>10}{'alone':>9}{'without':>9}{'with':>9} s"
        f"{'hidden [95 %]':>26}{'of the waiting':>26}{'CPU s, alone':>14}{'within':>8}"
    )
    for name in names:
        balanced = _balanced(crew, replace(job, contender=name, updates=SKIPPED + 2))
        found = crew(measure_overlap, replace(balanced, updates=SKIPPED + rounds))
        told = summary(found, cores)
        results[name] = {"samples": balanced.samples, **told, "ranks": [asdict(each) for each in found]}
        seconds = told["seconds"]
        print(
            f"  {name:20}{balanced.samples:8}{seconds['backward']:10.3f}{seconds['alone']:9.3f}"
            f"{seconds['without']:9.3f}{seconds['with']:9.3f}  {_shares(told['hidden']):>26}"
            f"{_shares(told['waiting_hidden']):>26}{told['processor_alone']:14.2f}{told['processor_within']:8.2f}",
            flush=True,
        )
    return {"overlap": results}


def summary(found: Sequence[Overlap], cores: int) -> dict[str, Any]:
    """Medians, and the hidden shares with their 95 % intervals over the rounds."""
    seconds = {
        kind: [max(turn) for turn in zip(*(each.seconds[kind] for each in found), strict=True)] for kind in KINDS
    }
    processor = {
        kind: [sum(turn) for turn in zip(*(each.processor[kind] for each in found), strict=True)] for kind in KINDS
    }
    steady = range(SKIPPED, len(seconds["with"]))
    alone = statistics.median(seconds["alone"][turn] for turn in steady)
    busy_alone = statistics.median(processor["alone"][turn] for turn in steady)
    exposed = [seconds["with"][turn] - seconds["without"][turn] for turn in steady]
    busy = [processor["with"][turn] - processor["without"][turn] for turn in steady]
    waits = max(alone - busy_alone / cores, 1e-9)
    return {
        "seconds": {kind: statistics.median(seconds[kind][turn] for turn in steady) for kind in KINDS},
        "hidden": interval([1 - each / alone for each in exposed]),
        "waiting_hidden": interval(
            [1 - max(0.0, each - used / cores) / waits for each, used in zip(exposed, busy, strict=True)]
        ),
        "processor_alone": busy_alone,
        "processor_within": statistics.median(busy),
    }


def _balanced(crew: Callable[..., list[Any]], job: Job) -> Job:
    """With so many samples that backward takes as long as the reduction alone."""
    for _ in range(3):
        seconds = summary(crew(measure_overlap, job), 1)["seconds"]
        samples = round(job.samples * seconds["alone"] / seconds["backward"])
        samples = max(1, min(MOST_SAMPLES, samples))
        if abs(samples - job.samples) <= 0.1 * job.samples:
            break
        job = replace(job, samples=samples)
    return job


def _shares(values: tuple[float, float, float]) -> str:
    return "{:.0%} [{:.0%}, {:.0%}]".format(*values)
