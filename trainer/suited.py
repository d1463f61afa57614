"""Batch schedules for another full batch than the one they were written for."""

import math
from collections.abc import Mapping

from gradwire.schedulers import Duration
from gradwire.schedulers.batch import Ramp, Staged
from gradwire.schedulers.coupling import BatchRule, CriticalBatchWarmup
from gradwire.schedulers.trajectory import whole_batch

Arguments = Mapping[str, str | int]


def suited(rule: BatchRule, full: int, size: int, granule: int) -> Arguments:
    """The arguments of a batch schedule with which it does, up to another full batch, what it did up to the old one.

    Sizes that stand in it move in proportion, as near as granules and the schedule's own steps let them.

    Args:
        rule: The schedule, or the coupling.
        full: The full batch that it was written for, in samples.
        size: The full batch that it is to reach.
        granule: Batches are multiples of so many samples.

    Returns:
        Those that change, by name; a schedule that names no sizes has none.
    """
    share = size / full
    if isinstance(rule, Staged):
        return {"stages": _stages(rule, size, granule)}
    if isinstance(rule, CriticalBatchWarmup):
        return {"start": _halved(rule, full, size, granule)}
    start = getattr(rule, "start", None)
    if isinstance(start, Duration):
        return {"start": f"{max(round(start.amount * share), 1)} {start.unit}"}
    if not isinstance(start, int):
        return {}
    first = min(max(whole_batch(start * share, granule), _least(rule)), size)
    if not isinstance(rule, Ramp):
        return {"start": first}
    return {
        "start": first,
        "increment": granule * _nearest_divisor((size - first) // granule, rule.increment * share / granule),
    }


def _stages(rule: Staged, size: int, granule: int) -> str:
    sizes = [samples for _, samples in rule.parsed]
    thresholds = [stage.partition(":")[0] for stage in rule.stages.split()]
    moved = [min(whole_batch(samples * size / max(sizes), granule), size) for samples in sizes]
    return " ".join(f"{threshold}:{samples}" for threshold, samples in zip(thresholds, moved, strict=True))


def _halved(rule: CriticalBatchWarmup, full: int, size: int, granule: int) -> int:
    """The first batch: the full one halved as often as thresholds say or as it was before, or as often as it can be."""
    halvings = max(round(math.log2(full / rule.start)), 0) if rule.thresholds is None else len(rule.thresholds)
    start = size
    while halvings and start % (2 * granule) == 0 and start // 2 >= _least(rule):
        start, halvings = start // 2, halvings - 1
    return start


def _least(rule: BatchRule) -> int:
    """A noise scale is measured in batches of two samples or more."""
    measures = getattr(rule, "measures", False) or getattr(rule, "thresholds", ()) is None
    return 2 if measures else 1


def _nearest_divisor(number: int, wanted: float) -> int:
    """The divisor that comes nearest, by ratio; where there is nothing to divide, what was wanted."""
    if number < 1:
        return max(round(wanted), 1)
    divisors = [each for each in range(1, number + 1) if number % each == 0]
    return min(divisors, key=lambda each: abs(math.log(each / wanted)))
