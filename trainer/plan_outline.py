"""A plan in up to about a thousand places: enough for a table or a picture of it.

A plan is a function of the samples seen, so a run of millions of updates need not be walked through.
"""

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gradwire.schedulers import Clock, Duration, Plan, Step

_PLACES = 900  # looked at, evenly over the samples of a longer run
_JUMPS = 40  # places between two of these at which a value jumps, found exactly
_JUMP = 0.02  # of the largest value: more than this from one place to the next is a jump
_ROWS = 14
_FLAT = 0.004  # of the largest value: a table needs no row for less


@dataclass(frozen=True)
class Point:
    """One update of the plan.

    Args:
        clock: Before the update.
        step: What the update does.
    """

    clock: Clock
    step: Step


@dataclass(frozen=True)
class Outline:
    """A plan in up to about a thousand places.

    Args:
        plan: The plan.
        points: Some of its updates, in order: the first, the last, and those at which a value jumps among them.
        context: Tokens of one sample.
    """

    plan: Plan
    points: tuple[Point, ...]
    context: int

    @property
    def measures(self) -> bool:
        """Whether batch sizes or rates are decided by what is measured while training."""
        return self.plan.measures

    @cached_property
    def rows(self) -> list[Point]:
        """The updates that tell the most: where a straight line from row to row would miss the plan."""
        places = [point.clock.samples for point in self.points]
        return [self.points[row] for row in _telling(places, [_values(point.step) for point in self.points])]


def outline(plan: Plan, context: int = 1) -> Outline:
    """Look at a plan in its telling places."""
    updates = plan.total_updates
    if updates <= _PLACES:
        return Outline(plan, tuple(_point(plan, context, update) for update in range(updates)), context)
    wanted = [plan.total_samples * place // _PLACES for place in range(_PLACES)]
    places = sorted({*_updates_at(plan, wanted), updates - 1})
    points = {update: _point(plan, context, update) for update in places}
    for first, last in _jumps(points):
        for update in _around_jump(plan, context, first, last):
            points[update] = _point(plan, context, update)
    return Outline(plan, tuple(points[update] for update in sorted(points)), context)


def _point(plan: Plan, context: int, update: int) -> Point:
    samples = plan.to_samples(Duration(update, "updates"))
    clock = Clock(samples, samples * context, update)
    return Point(clock, plan.at(clock))


def _updates_at(plan: Plan, samples: Iterable[int]) -> Iterable[int]:
    """The updates under way after so many samples."""
    updates = range(plan.total_updates)
    for seen in samples:
        after = bisect.bisect_right(updates, seen, key=lambda update: plan.to_samples(Duration(update, "updates")))
        yield max(after - 1, 0)


def _values(step: Step) -> tuple[float, ...]:
    return (float(step.batch_size), step.lr, *(step.betas or ()))


def _distance(one: Step, other: Step, largest: Sequence[float]) -> float:
    """The largest difference of two steps' values, relative to the largest ones."""
    return max(
        abs(a - b) / scale for a, b, scale in zip(_values(one), _values(other), largest, strict=True) if scale > 0
    )


def _largest(steps: Iterable[Step]) -> tuple[float, ...]:
    return tuple(max(values) for values in zip(*map(_values, steps), strict=True))


def _jumps(points: Mapping[int, Point]) -> list[tuple[int, int]]:
    """The pairs of neighbors between which the values change most."""
    updates = sorted(points)
    largest = _largest(point.step for point in points.values())
    changes = [
        (_distance(points[one].step, points[other].step, largest), one, other)
        for one, other in itertools.pairwise(updates)
    ]
    found = sorted((change for change in changes if change[0] > _JUMP), reverse=True)
    return [(one, other) for _, one, other in found[:_JUMPS]]


def _around_jump(plan: Plan, context: int, first: int, last: int) -> tuple[int, int]:
    """The update before the jump between two updates and the one after it: each time the half that changes more."""
    ends = {update: _point(plan, context, update).step for update in (first, last)}
    largest = _largest(ends.values())
    while last - first > 1:
        middle = (first + last) // 2
        ends[middle] = _point(plan, context, middle).step
        earlier = _distance(ends[first], ends[middle], largest) >= _distance(ends[middle], ends[last], largest)
        first, last = (first, middle) if earlier else (middle, last)
    return first, last


def _telling(places: Sequence[int], values: Sequence[Sequence[float]]) -> list[int]:
    """The rows: the first and the last update, those that the rows so far tell least about, then evenly spaced ones.

    Between two rows a reader takes a value as unchanged or as changing evenly, whichever is nearer.
    """
    scales = [max(map(abs, column)) or 1.0 for column in zip(*values, strict=True)]
    rows = sorted({0, len(values) - 1})
    while len(rows) < min(_ROWS, len(values)):
        pairs = list(itertools.pairwise(rows))
        miss, row = max(_worst(places, values, scales, one, other) for one, other in pairs)
        if miss < _FLAT:
            one, other = max((pair for pair in pairs if pair[1] - pair[0] > 1), key=lambda pair: _gap(places, *pair))
            middle = bisect.bisect_left(places, (places[one] + places[other]) / 2)
            row = min(max(middle, one + 1), other - 1)
        bisect.insort(rows, row)
    return rows


def _gap(places: Sequence[int], one: int, other: int) -> int:
    return places[other] - places[one]


def _worst(
    places: Sequence[int], values: Sequence[Sequence[float]], scales: Sequence[float], one: int, other: int
) -> tuple[float, int]:
    """The row between two that they tell least about, and how far off they are there."""
    worst = (-1.0, one)
    for row in range(one + 1, other):
        share = _gap(places, one, row) / _gap(places, one, other)
        for first, here, last, scale in zip(values[one], values[row], values[other], scales, strict=True):
            miss = min(abs(here - first), abs(here - first - share * (last - first))) / scale
            worst = max(worst, (miss, row))
    return worst
