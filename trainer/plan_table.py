"""`gradwire plan`: what a run will do, without training: a table for people, and the same as JSON."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gradwire.schedulers import Plan, PlanError
from gradwire.trainer import named_files
from gradwire.trainer.assemble import build_plan, component
from gradwire.trainer.config.construction import argument
from gradwire.trainer.data.feed import few_shapes, fewest_passes, passes
from gradwire.trainer.launch.hosts import Hosts
from gradwire.trainer.launch.local import count_processes
from gradwire.trainer.plan_outline import Outline, Point, outline

MEASURED = (
    "This run decides its batch sizes or rates while it trains, by the gradient noise scale: shown is the plan as it "
    "stands before anything is measured."
)


@dataclass(frozen=True)
class Constant:
    """A run over the same samples whose batch is the same throughout, for comparison.

    Args:
        batch_size: Its batch.
        updates: Its updates.
        change: Updates of the planned run against it: −0.25 is a quarter fewer.
    """

    batch_size: int
    updates: int
    change: float


@dataclass(frozen=True)
class Totals:
    """A planned run in numbers.

    Args:
        updates: Updates of the run.
        samples: Its samples.
        tokens: Its tokens.
        largest_batch: Its largest global batch.
        world_size: Ranks that `launch` starts.
        micro_batch: Most samples in a pass of one rank; None where it is decided on the devices.
        passes: Passes that each rank makes in an update of the largest batch; None where that is not known yet.
    """

    updates: int
    samples: int
    tokens: int
    largest_batch: int
    world_size: int
    micro_batch: int | None
    passes: int | None


def planned(config: Mapping[str, Any], allow: tuple[str, ...] = ()) -> Outline:
    """The outline of a configured run. The data is read only where the plan needs the length of an epoch.

    Raises:
        SchedulerError: the parts of the plan do not fit together.
        DataError: the data cannot be read.
    """
    unread = SimpleNamespace(train=None, context=argument(config, "data", "context", allow) or 1)
    try:
        return outline(build_plan(config, unread, allow), unread.context)
    except PlanError:  # of an epoch: everything else was checked with the configuration
        data = component(config["data"], allow, "workers")
        return outline(build_plan(config, data, allow), getattr(data, "context", 1))


def totals(config: Mapping[str, Any], planned: Outline) -> Totals:
    """What the run amounts to, on the ranks that the configuration starts."""
    plan, launch, micro = planned.plan, config["launch"], config["batch"]["micro"]
    world_size = count_processes(launch["processes"], launch["device"]) * Hosts.of(launch["hosts"]).least
    cut = few_shapes if config["compile"] else fewest_passes
    return Totals(
        updates=plan.total_updates,
        samples=plan.total_samples,
        tokens=plan.total_samples * planned.context,
        largest_batch=plan.largest_batch,
        world_size=world_size,
        micro_batch=None if micro == "auto" else micro,
        passes=None if micro == "auto" else len(passes(0, plan.largest_batch, 0, world_size, micro, cut)),
    )


def against_constant(plan: Plan, batch_sizes: Sequence[int]) -> list[Constant]:
    """The run against those of constant batch."""
    return [
        Constant(size, updates, plan.total_updates / updates - 1)
        for size in dict.fromkeys(batch_sizes)
        for updates in [math.ceil(plan.total_samples / size)]
    ]


def compared(config: Mapping[str, Any], planned: Outline) -> list[Constant]:
    """The run against a constant batch of `batch.size`, and of its own first batch where that is another."""
    return against_constant(planned.plan, (config["batch"]["size"], planned.points[0].step.batch_size))


def to_text(planned: Outline, totals: Totals, constants: Sequence[Constant]) -> str:
    """The table, and what it amounts to."""
    lines = list(_aligned(list(_cells(planned))))
    lines += ["", f"{'updates':<15}{totals.updates:,}", f"{'samples':<15}{totals.samples:,}"]
    lines += [f"{'tokens':<15}{totals.tokens:,}", f"{'largest batch':<15}{totals.largest_batch:,} samples"]
    lines += [f"{'passes a rank':<15}{_passes(totals)}"]
    lines += [f"{'constant batch':<15}{_comparison(constant)}" for constant in constants]
    return "\n".join([*lines, *(["", MEASURED] if planned.measures else [])]) + "\n"


def write_json(
    path: Path,
    planned: Outline,
    totals: Totals,
    constants: Sequence[Constant],
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write totals, comparisons and up to about a thousand updates, and what else was foretold, by name.

    Raises:
        WriteError: the file cannot be written.
    """
    record = {
        "totals": asdict(totals),
        "constant_batch": [asdict(constant) for constant in constants],
        "measured": planned.measures,
        "points": [_entry(planned, point) for point in planned.points],
        **(more or {}),
    }
    named_files.write(path, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def _entry(planned: Outline, point: Point) -> dict[str, Any]:
    clock, step = point.clock, point.step
    place = {"update": clock.updates, "samples": clock.samples, "tokens": clock.tokens}
    return place | {key: value for key, value in asdict(step).items() if value is not None}


def _cells(planned: Outline) -> Iterator[list[str]]:
    steps = [point.step for point in planned.points]
    betas = len({step.betas for step in steps}) > 1
    yield ["update", "samples", "tokens", "run", "batch", "lr", *(["beta1", "beta2"] if betas else [])]
    for point in planned.rows:
        clock, step = point.clock, point.step
        yield [
            *(f"{count:,}" for count in (clock.updates, clock.samples, clock.tokens)),
            f"{clock.samples / planned.plan.total_samples:.1%}",
            f"{step.batch_size:,}",
            f"{step.lr:.4g}",
            *(f"{beta:.6g}" for beta in (step.betas or ()) if betas),
        ]


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _passes(totals: Totals) -> str:
    where = f"{totals.world_size} {'rank' if totals.world_size == 1 else 'ranks'}"
    if totals.passes is None:
        return f"batch.micro=auto: decided on the devices, on {where}"
    return f"{totals.passes} in an update of the largest batch (batch.micro={totals.micro_batch}, {where})"


def _comparison(constant: Constant) -> str:
    size, change = f"{constant.updates:,} updates of {constant.batch_size:,} samples", constant.change
    if change == 0:
        return f"{size}: this run takes as many"
    return f"{size}: this run takes {abs(change):.1%} {'fewer' if change < 0 else 'more'}"
