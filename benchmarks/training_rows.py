"""What the training benchmark's runs say: times beside the floor's and plain DDP's, losses, and its table."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.training_job import Run
from gradwire.comm.benchmark import interval

SKIPPED = 3  # first updates, which make connections and buckets
WAITS = 0.8  # of plain DDP's update


@dataclass(frozen=True)
class Row:
    """A contender over all seeds. Times in seconds; bytes and processor time of an update."""

    update: float
    of_floor: tuple[float, float, float]
    waiting: float
    losses: list[float]
    difference: list[float]
    to_target: list[float | None]
    speedup: float | None
    sent: float
    processor: float


def merged(runs: Sequence[Run]) -> Run:
    """Of all ranks: the slowest's updates, processor time added up, the busiest host's bytes, rank 0's traffic."""
    slowest = [max(each) for each in zip(*(run.seconds for run in runs), strict=True)]
    processor, sent = sum(run.processor for run in runs), max(run.sent for run in runs)
    return Run(slowest, runs[0].losses, processor, sent, runs[0].traffic)


def time_to(target: float, run: Run) -> float | None:
    """Seconds of training until the validation loss first is the target, between evaluations by a straight line."""
    ends = [0.0]
    for seconds in run.seconds:
        ends.append(ends[-1] + seconds)
    before = run.losses[0]
    for update, loss in run.losses:
        if loss <= target:
            share = 1.0 if before[1] == loss else (before[1] - target) / (before[1] - loss)
            return ends[before[0]] + share * (ends[update] - ends[before[0]])
        before = update, loss
    return None


def row(runs: Sequence[Run], plain: Sequence[Run], floor: Run, updates: int) -> Row:
    """What a contender's runs, one for each seed, say beside plain DDP's."""
    steady = [seconds for run in runs for seconds in run.seconds[SKIPPED:]]
    base = statistics.median(floor.seconds[SKIPPED:])
    losses, plain_losses = ([dict(run.losses)[updates] for run in each] for each in (runs, plain))
    to_target = [time_to(loss, run) for loss, run in zip(plain_losses, runs, strict=True)]
    ratios = [
        sum(ddp.seconds[:updates]) / seconds
        for ddp, seconds in zip(plain, to_target, strict=True)
        if seconds is not None
    ]
    return Row(
        update=statistics.median(steady),
        of_floor=interval([seconds / base for seconds in steady]),
        waiting=1 - base / statistics.median(steady),
        losses=losses,
        difference=[loss / other - 1 for loss, other in zip(losses, plain_losses, strict=True)],
        to_target=to_target,
        speedup=statistics.median(ratios) if len(ratios) == len(runs) else None,
        sent=statistics.median(run.sent for run in runs),
        processor=statistics.median(run.processor for run in runs),
    )


def show(rows: Mapping[str, Row], floor: Run, updates: int) -> None:
    """Print the table."""
    base = statistics.median(floor.seconds[SKIPPED:])
    print(f"\nthe floor: {base:.3f} s an update, {floor.processor:.2f} s of processor time on all ranks")
    print(
        f"  {'':20}{'s/update':>9}  {'× the floor [95 %]':>22}{'waits':>7}{f'loss at {updates}':>12}{'against ddp':>18}"
        f"{'s to target':>13}{'speed':>7}{'MB sent':>9}{'CPU s':>7}"
    )
    for name, each in rows.items():
        difference = f"{100 * statistics.mean(each.difference):+.2f} % ≤ {100 * max(each.difference):+.2f}"
        reached = [seconds for seconds in each.to_target if seconds is not None]
        target = f"{statistics.median(reached):.1f}" if len(reached) == len(each.to_target) else "not reached"
        speed = "-" if each.speedup is None else f"{each.speedup:.2f}×"
        print(
            f"  {name:20}{each.update:9.3f}  {'{:.3f} [{:.3f}, {:.3f}]'.format(*each.of_floor):>22}{each.waiting:7.0%}"
            f"{statistics.mean(each.losses):12.4f}{difference:>18}{target:>13}{speed:>7}"
            f"{each.sent / 1e6:9.2f}{each.processor - floor.processor:7.2f}"
        )
    if "ddp" in rows and rows["ddp"].waiting < WAITS:
        print("  plain DDP waits for less than 80 % of its update: choose fewer --samples or a slower --rate")
