"""Batch size that grows in steps of its own making, up to the full batch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.batch.given import check_granule, check_positive, check_start
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError, ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.schedule import Schedule


@checked(ScheduleError)
@dataclass(frozen=True)
class Ramp(Schedule):
    """Batch size in equal steps: B = start + increment·⌊seen/per⌋, per = length/((size − start)/increment).

    The full batch is reached at the end of the ramp and kept. Source: `--rampup-batch-size` of Megatron-LM
    (https://github.com/NVIDIA/Megatron-LM).

    Args:
        start: First batch in samples.
        increment: What each step adds, in samples; it divides the way from `start` to the full batch.
        length: How long the batch grows. In updates, it is so many updates below the full size.

    Raises:
        ScheduleError: `start` or `increment` is below 1.
    """

    start: int
    increment: int
    length: Duration | str = field()

    def __post_init__(self) -> None:
        check_positive("start of a ramp", self.start)
        check_positive("increment of a ramp", self.increment)
        object.__setattr__(self, "length", Duration.parse(self.length))

    def value(self, at: Progress) -> float:
        return self.along(at)(at.start)

    def along(self, at: Progress) -> Callable[[int], float]:
        length, steps, peak = at.to_samples(self.length), self._steps(at), at.peak
        first, increment = self.start, self.increment
        return lambda start: 1.0 if start >= length else (first + increment * (start * steps // length)) / peak

    def monotone_until(self, at: Progress) -> float:
        return math.inf

    def check(self, at: Progress) -> None:
        super().check(at)
        check_start(Duration(self.start, "samples"), at)
        check_granule("increment of a ramp", self.increment, at)
        if self.start + self.increment * self._steps(at) != at.peak:
            raise PlanError(
                f"from a start of {self.start} in steps of {self.increment} a ramp does not reach the full batch of "
                f"{at.peak:g}: "
                f"take an increment that divides {at.peak - self.start:g}, or another start"
            )

    def _steps(self, at: Progress) -> int:
        return max(int(at.peak) - self.start, 0) // self.increment


@checked(ScheduleError)
@dataclass(frozen=True)
class Doubling(Schedule):
    """Batch size in geometric steps: B = min(size, start·factor^⌊seen/every⌋), rounded to granules.

    Source: batches that double at given places, as in AdaBatch (Devarakonda et al. 2017, arXiv 1712.02029), without
    its change of the learning rate.

    Args:
        start: First batch in samples.
        every: How long each size is kept; not in updates.
        factor: What the batch is multiplied with at each step, above 1.

    Raises:
        ScheduleError: `start` is below 1, `every` is zero, or `factor` is not above 1.
    """

    start: int
    every: Duration | str
    factor: float = 2.0

    def __post_init__(self) -> None:
        check_positive("start of a doubling batch", self.start)
        object.__setattr__(self, "every", Duration.parse(self.every))
        if not Duration.parse(self.every).amount:
            raise ScheduleError(f"a doubling batch keeps each size for some time, above 0; found {self.every}")
        if not self.factor > 1:
            raise ScheduleError(f"the factor of a doubling batch is a number above 1; found {self.factor!r}")

    def value(self, at: Progress) -> float:
        done = at.start // max(at.to_samples(self.every), 1)
        if done >= self._steps(at):
            return 1.0
        return min(self.start * self.factor**done / at.peak, 1.0)

    def monotone_until(self, at: Progress) -> float:
        return math.inf

    def check(self, at: Progress) -> None:
        check_start(Duration(self.start, "samples"), at)
        needed = self._steps(at) * at.to_samples(self.every)
        if needed and needed >= at.total:
            raise PlanError(
                f"from {self.start} the full batch of {at.peak:g} takes {self._steps(at)} times {self.every} "
                f"({needed} samples), but {at.room}: "
                "take a shorter `every`, a larger start, or a longer run"
            )

    def _steps(self, at: Progress) -> int:
        """How often the batch grows until it is full."""
        return max(math.ceil(round(math.log(at.peak / self.start, self.factor), 9)), 0)
