"""The ways down from the peak. All look at the start of an update, and none ever rises.

Those with a `length` take it, or what is left of the run where it is null, and stay at their floor afterwards.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError, ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.lr.shares import check_share_of_peak, down_to, left
from gradwire.schedulers.schedule import Schedule


@checked(ScheduleError)
@dataclass(frozen=True)
class LinearDecay(Schedule):
    """Linear fall from the peak: floor + (1 − floor)·(T−s)/T.

    Source: linear decay to zero (D2Z), Bergsma et al. 2025 (arXiv 2502.15938).
    The last update is above the floor; the point after it is the floor.

    Args:
        floor: Factor at the end, 0 to 1.
        length: How long it falls; null for what is left of the run.

    Raises:
        ScheduleError: `floor` is not between 0 and 1.
    """

    floor: float = 0.0
    length: Duration | str | None = None

    def __post_init__(self) -> None:
        check_share_of_peak("floor of a linear decay", self.floor)
        _parse_length(self)

    def value(self, at: Progress) -> float:
        return self.along(at)(at.start)

    def along(self, at: Progress) -> Callable[[int], float]:
        share, floor = left(at, self.length), self.floor
        return lambda start: down_to(floor, share(start))

    def monotone_until(self, at: Progress) -> float:
        return math.inf


@checked(ScheduleError)
@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine down from the peak: floor + (1 − floor)·(1 + cos(π·s/T))/2.

    Source: Loshchilov & Hutter 2017 (SGDR, arXiv 1608.03983, equation 5), one cycle without restarts.

    Args:
        floor: Factor at the end, 0 to 1.
        length: How long it falls; null for what is left of the run.

    Raises:
        ScheduleError: `floor` is not between 0 and 1.
    """

    floor: float = 0.0
    length: Duration | str | None = None

    def __post_init__(self) -> None:
        check_share_of_peak("floor of a cosine", self.floor)
        _parse_length(self)

    def value(self, at: Progress) -> float:
        return self.along(at)(at.start)

    def along(self, at: Progress) -> Callable[[int], float]:
        share, floor = left(at, self.length), self.floor
        return lambda start: down_to(floor, (1 + math.cos(math.pi * (1 - share(start)))) / 2)

    def monotone_until(self, at: Progress) -> float:
        return math.inf


@checked(ScheduleError)
@dataclass(frozen=True)
class QuarterCosine(Schedule):
    """A quarter of a cosine down from the peak: floor + (1 − floor)·cos(π/2·s/T).

    It leaves the peak as gently as `Cosine` and reaches the floor as steeply as it ever falls; to zero, its mean is
    2/π of the peak. Source: what Seesaw (arXiv 2510.14717) calls cosine, and counts its saving of 1 − 2/π from.

    Args:
        floor: Factor at the end, 0 to 1.
        length: How long it falls; null for what is left of the run.

    Raises:
        ScheduleError: `floor` is not between 0 and 1.
    """

    floor: float = 0.0
    length: Duration | str | None = None

    def __post_init__(self) -> None:
        check_share_of_peak("floor of a quarter cosine", self.floor)
        _parse_length(self)

    def value(self, at: Progress) -> float:
        return self.along(at)(at.start)

    def along(self, at: Progress) -> Callable[[int], float]:
        share, floor = left(at, self.length), self.floor
        # sin(π/2·left) is cos(π/2·s/T) and exactly 0 at the end.
        return lambda start: down_to(floor, math.sin(math.pi / 2 * share(start)))

    def monotone_until(self, at: Progress) -> float:
        return math.inf


@checked(ScheduleError)
@dataclass(frozen=True)
class Polynomial(Schedule):
    """A power of what is left: floor + (1 − floor)·(1 − s/T)^power; power 1 is `LinearDecay`.

    Source: the "poly" policy of DeepLab, Chen et al. 2016 (arXiv 1606.00915, section 4.1.1), there with power 0.9.

    Args:
        power: Exponent, above 0: below 1 the rate stays high for longer, above 1 it falls early.
        floor: Factor at the end, 0 to 1.
        length: How long it falls; null for what is left of the run.

    Raises:
        ScheduleError: `power` is not above 0, or `floor` is not between 0 and 1.
    """

    power: float = 0.9
    floor: float = 0.0
    length: Duration | str | None = None

    def __post_init__(self) -> None:
        if not self.power > 0:
            raise ScheduleError(f"the power of a polynomial decay is a number above 0; found {self.power!r}")
        check_share_of_peak("floor of a polynomial decay", self.floor)
        _parse_length(self)

    def value(self, at: Progress) -> float:
        return self.along(at)(at.start)

    def along(self, at: Progress) -> Callable[[int], float]:
        share, floor, power = left(at, self.length), self.floor, self.power
        return lambda start: down_to(floor, share(start) ** power)

    def monotone_until(self, at: Progress) -> float:
        return math.inf


@checked(ScheduleError)
@dataclass(frozen=True)
class InverseSquareRoot(Schedule):
    """Fall with the root of the samples: √(W/(W+s)), s from the start of the piece.

    After a warm-up of the same length W this is √(W/S) of all samples S, and joins it without a step.
    Source: Vaswani et al. 2017 (arXiv 1706.03762, equation 3), relative to its peak.

    Args:
        timescale: W. After three times as long the rate is half the peak.

    Raises:
        ScheduleError: `timescale` is zero.
    """

    timescale: Duration | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "timescale", Duration.parse(self.timescale))
        if not Duration.parse(self.timescale).amount:
            raise ScheduleError(
                f"the timescale of an inverse square root is the length of its warm-up, above 0; found {self.timescale}"
            )

    def value(self, at: Progress) -> float:
        return self.along(at)(at.start)

    def along(self, at: Progress) -> Callable[[int], float]:
        timescale = max(at.to_samples(self.timescale), 1)
        return lambda start: math.sqrt(timescale / (timescale + start))

    def monotone_until(self, at: Progress) -> float:
        return math.inf


@checked(ScheduleError)
@dataclass(frozen=True)
class StepDecay(Schedule):
    """Down by a factor at given places: factor^(places passed), counted from the start of the piece.

    Source: a tenth after 30, 60 and 80 of 90 epochs, Goyal et al. 2017 (arXiv 1706.02677, section 5.1); behind their
    warm-up of 5 epochs these are 25, 55 and 75.

    Args:
        at: Where the rate falls, strictly rising, from the start of the piece on.
        factor: What it falls by each time, between 0 and 1.

    Raises:
        ScheduleError: there is no place, places do not rise strictly, or `factor` is not between 0 and 1.
    """

    at: Sequence[Duration | str]
    factor: float = 0.1

    def __post_init__(self) -> None:
        if not self.at:
            raise ScheduleError(f"a step decay falls at a list of places, as in ['50%', '75%']; found {self.at!r}")
        places = tuple(Duration.parse(place) for place in self.at)
        object.__setattr__(self, "at", places)
        if not 0 < self.factor < 1:
            raise ScheduleError(f"the factor of a step decay lies between 0 and 1; found {self.factor!r}")
        for before, after in itertools.pairwise((Duration(0, places[0].unit), *places)):
            if before.unit == after.unit and before.amount >= after.amount:
                raise ScheduleError(_unsorted(before, after))

    def value(self, at: Progress) -> float:
        return self.factor ** sum(at.start >= at.to_samples(place) for place in self.at)

    def check(self, at: Progress) -> None:
        places = [(Duration.parse(place), at.to_samples(place)) for place in self.at]
        for (before, sooner), (after, later) in itertools.pairwise(places):
            if sooner >= later:
                raise PlanError(_unsorted(before, after))
        last, samples = places[-1]
        if samples >= at.total:
            raise PlanError(
                f"a step decay falls at {at.said(last)}, but {at.room}: let it fall earlier, or lengthen the run"
            )

    def monotone_until(self, at: Progress) -> float:
        return math.inf


def _unsorted(before: Duration, after: Duration) -> str:
    return f"the places of a step decay rise strictly from above 0; found {after} after {before}: sort them"


def _parse_length(schedule: LinearDecay | Cosine | QuarterCosine | Polynomial) -> None:
    if schedule.length is not None:
        object.__setattr__(schedule, "length", Duration.parse(schedule.length))
