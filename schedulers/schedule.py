"""Schedules as functions of progress, and how they are put together.

A schedule gives a factor; a number before it gives the factor its unit, and `then` puts one after the other:

    3e-4 * Warmup("10%").then(Cosine(floor=0.1))
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Self

from gradwire.schedulers.arguments import checked, is_finite
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError, ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.trajectory import last_not_negative, trace


class Schedule(ABC):
    """A pure function of progress. To write one, implement `value`; the rest is optional.

    `length` is how long the schedule takes, None where it takes whatever it is given; only one with a length can be
    followed by another. A dataclass declares it as `length: Duration | str = field()`.
    """

    length: Duration | str | None = None
    measures: bool = False  # whether it reads measured noise scales (`Horizon.noise`)

    @abstractmethod
    def value(self, at: Progress) -> float:
        """The factor for one update. At and after the end of the piece it is what the schedule ends on."""

    def along(self, at: Progress) -> Callable[[int], float]:
        """The values over the piece that `at` lies in, as a function of `start`, for updates that end where they start.

        A schedule may override it to compute once what all of its values share: long runs look at many of them.
        """
        return lambda start: self.value(Progress(start, start, at.total, at.horizon, at.offset, at.peak))

    def decay(self, at: Progress) -> float:
        """What a learning rate has come down to from its peak, 0 to 1: 1.0 while it rises or stays.

        Rules that trade decay for batch size read it (Seesaw, Smith). It is the value itself unless overridden, as
        every schedule that rises must.
        """
        return self.value(at)

    def monotone_until(self, at: Progress) -> float:
        """Up to which sample of the piece (exclusive) the value only rises or only falls, seen from `at.start`.

        A promise that lets long runs be counted in an instant; without it every update is looked at.
        """
        return at.start

    def check(self, at: Progress) -> None:
        """Refuse what does not fit into the run; called once when a plan is made, at the start of the piece.

        Raises:
            PlanError: the schedule does not fit into its piece of the run.
        """
        if self.length is None:
            return
        needed = at.to_samples(self.length)
        if needed > at.total:
            raise PlanError(
                f"{type(self).__name__} takes {at.said(self.length)}, but {at.room}: shorten it or lengthen the run"
            )

    def peaks(self) -> tuple[float, ...]:
        """The numbers that give the schedule its unit; empty while it is a mere factor."""
        return ()

    def with_length(self, length: Duration) -> Self:
        """The same schedule with another length."""
        other = copy.copy(self)
        object.__setattr__(other, "length", length)
        return other

    def settled(self, at: Progress, before: "Schedule | None" = None) -> "Schedule":
        """As a batch schedule: the same with a length in updates turned into samples.

        How many updates fit into a piece depends on the sizes, which may depend on the piece's length. Stretching
        the piece never lets fewer updates fit, so the longest one that takes no more updates is searched for.

        Args:
            at: The start of the piece.
            before: What it settled to in a run of another length, which is tried first.
        """
        if self.length is None or Duration.parse(self.length).unit != "updates":
            return self
        wanted = Duration.parse(self.length).amount

        @cache
        def excess(samples: int) -> float:
            return wanted - _updates_in(self.with_length(Duration(samples, "samples")), at, samples)

        if before is not None and before.length is not None:
            length = round(Duration.parse(before.length).amount)
            if excess(length) >= 0 > excess(length + 1):
                return before
        low = math.floor(wanted * at.horizon.granule)  # no update is smaller than a granule
        high = max(2 * low, 1)
        while excess(high) >= 0:
            low, high = high, 2 * high
        return self.with_length(Duration(last_not_negative(excess, low, high), "samples"))

    def then(self, following: "Schedule") -> "Joined":
        """This schedule for its length, then another for the rest.

        Raises:
            ScheduleError: this one has no length, or only one of the two was multiplied with a number.
        """
        return Joined(self, following)

    def __rmul__(self, number: float) -> "Schedule":
        return Times(number, self)


def _updates_in(schedule: Schedule, at: Progress, samples: int) -> float:
    """Updates in the first so many samples of a piece, a cut one as a fraction."""
    if samples == 0:
        return 0.0

    def piece(start: int) -> Progress:
        return Progress(start, start, at.total, at.horizon, at.offset, at.peak)

    trajectory = trace(
        schedule.along(at),
        lambda start: schedule.monotone_until(piece(start)),
        granule=at.horizon.granule,
        samples=samples,
    )
    last = trajectory.firsts[-1]
    return last + (samples - trajectory.starts[-1]) / trajectory.sizes[-1]


@checked(ScheduleError)
@dataclass(frozen=True)
class Constant(Schedule):
    """Always the peak.

    Args:
        length: How long before another schedule follows; null where none does.
    """

    length: Duration | str | None = None

    def __post_init__(self) -> None:
        if self.length is not None:
            object.__setattr__(self, "length", Duration.parse(self.length))

    def value(self, at: Progress) -> float:
        return 1.0

    def along(self, at: Progress) -> Callable[[int], float]:
        return lambda start: 1.0

    def monotone_until(self, at: Progress) -> float:
        return math.inf


@dataclass(frozen=True)
class Times(Schedule):
    """A schedule multiplied with a number, which gives it a unit.

    Args:
        number: The peak learning rate, or the full batch size in samples.
        schedule: The factor.

    Raises:
        ScheduleError: the number is negative or not finite.
    """

    number: float
    schedule: Schedule
    length: Duration | str | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise ScheduleError(f"what is multiplied with a peak is a schedule; found {self.schedule!r}")
        if not is_finite(self.number) or self.number < 0:
            raise ScheduleError(f"a schedule is multiplied with its peak, a number from 0 on; found {self.number!r}")
        object.__setattr__(self, "length", self.schedule.length)
        object.__setattr__(self, "measures", self.schedule.measures)

    def value(self, at: Progress) -> float:
        return self.number * self._usable(self.schedule.value(at.times(self.number)), at.start)

    def along(self, at: Progress) -> Callable[[int], float]:
        number, factor_at, usable = self.number, self.schedule.along(at.times(self.number)), self._usable

        def value_at(start: int) -> float:
            factor = factor_at(start)
            return number * (factor if type(factor) is float and 0.0 <= factor < math.inf else usable(factor, start))

        return value_at

    def decay(self, at: Progress) -> float:
        return self.schedule.decay(at.times(self.number))

    def monotone_until(self, at: Progress) -> float:
        return self.schedule.monotone_until(at.times(self.number))

    def check(self, at: Progress) -> None:
        self.schedule.check(at.times(self.number))

    def peaks(self) -> tuple[float, ...]:
        return tuple(self.number * peak for peak in self.schedule.peaks()) or (self.number,)

    def with_length(self, length: Duration) -> "Times":
        return Times(self.number, self.schedule.with_length(length))

    def _usable(self, factor: float, start: int) -> float:
        if not is_finite(factor) or factor < 0:
            raise ScheduleError(
                f"{type(self.schedule).__name__} gives {factor!r} after {start} samples: a schedule's value is a "
                "finite number from 0 on"
            )
        return factor


@checked(ScheduleError)
@dataclass(frozen=True)
class Joined(Schedule):
    """One schedule for its length, then another for the rest. An update belongs to the piece in which it starts.

    Args:
        first: The one that comes first; it has a length.
        following: The one that comes after it.

    Raises:
        ScheduleError: the first has no length, or only one of the two was multiplied with a number.
    """

    first: Schedule
    following: Schedule
    cut: Duration = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.first.length is None:
            raise ScheduleError(
                f"{type(self.first).__name__} has no length, so nothing can follow it: give it one, or put it last"
            )
        if bool(self.first.peaks()) != bool(self.following.peaks()):
            raise ScheduleError(
                "only one of two joined schedules was multiplied with its peak: "
                "write 3e-4 * Warmup('10%').then(Cosine()), or multiply both"
            )
        object.__setattr__(self, "cut", Duration.parse(self.first.length))
        object.__setattr__(self, "measures", self.first.measures or self.following.measures)

    def value(self, at: Progress) -> float:
        schedule, piece, _ = self._piece(at)
        return schedule.value(piece)

    def along(self, at: Progress) -> Callable[[int], float]:
        cut = at.to_samples(self.cut)
        piece, rest = at.piece(0, cut), at.piece(cut, at.total)
        first, following, left = self.first.along(piece), self.following.along(rest), rest.total
        return lambda start: first(start) if start < cut else following(min(start - cut, left))

    def decay(self, at: Progress) -> float:
        """As in the piece that governs the update; a piece with a lower peak than those before it starts from there."""
        schedule, piece, _ = self._piece(at)
        if schedule is self.first:
            return schedule.decay(piece)
        highest = max(self.peaks(), default=1.0)
        start = max(self.following.peaks(), default=1.0) / highest if highest else 1.0
        return start * schedule.decay(piece)

    def monotone_until(self, at: Progress) -> float:
        schedule, piece, last = self._piece(at)
        return min(piece.offset - at.offset + schedule.monotone_until(piece), last)

    def check(self, at: Progress) -> None:
        self.first.check(at)
        self.following.check(at.piece(at.to_samples(self.cut), at.total))

    def peaks(self) -> tuple[float, ...]:
        return self.first.peaks() + self.following.peaks()

    def settled(self, at: Progress, before: Schedule | None = None) -> "Joined":
        known = before if isinstance(before, Joined) else None
        halfway = Joined(self.first.settled(at, known and known.first), self.following)
        rest = at.piece(at.to_samples(halfway.cut), at.total)
        return Joined(halfway.first, self.following.settled(rest, known and known.following))

    def then(self, following: Schedule) -> "Joined":
        return Joined(self.first, self.following.then(following))

    def __rmul__(self, number: float) -> "Joined":
        return Joined(number * self.first, number * self.following)

    def _piece(self, at: Progress) -> tuple[Schedule, Progress, float]:
        """The schedule that governs an update, the progress that it sees, and where its piece ends."""
        cut = at.to_samples(self.cut)
        if at.start < cut:
            return self.first, at.piece(0, cut), cut
        return self.following, at.piece(cut, at.total), math.inf
