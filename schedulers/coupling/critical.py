"""The batch and the learning rate grow with the critical batch size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.batch.given import check_positive, check_start
from gradwire.schedulers.coupling.base import Coupling
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError, ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.measured import check_measurable, measured_before, next_measurement
from gradwire.schedulers.schedule import Schedule


@checked(ScheduleError)
@dataclass(frozen=True)
class CriticalBatchWarmup(Coupling):
    """The batch doubles, and the learning rate rises by √2, each time the critical batch has grown to twice the batch.

    Source: batch size warm-up, Merrill et al. 2025 (arXiv 2505.23971). `thresholds` says when, from measurements of an
    earlier run; without them the noise scale is measured during this one and stands for the critical batch.

    Args:
        start: First batch in samples; `optimizer.lr` holds there.
        thresholds: When the batch doubles, each later than the one before; null measures.

    Raises:
        ScheduleError: `start` is no batch.
        DurationError: a threshold is not a duration.
    """

    start: int
    thresholds: Sequence[Duration | str] | None = None

    def __post_init__(self) -> None:
        check_positive("start of a critical-batch warm-up", self.start)
        if self.thresholds is None:
            check_measurable(self.start)
        else:
            object.__setattr__(self, "thresholds", tuple(map(Duration.parse, self.thresholds)))

    def batch(self, lr: Schedule, full: int) -> Schedule:
        return full * _Doubled(self, full, measures=self.thresholds is None)

    def rate(self, lr: Schedule, full: int) -> Schedule:
        return _RaisedRate(self, lr, full)

    def doublings(self, at: Progress, full: int) -> int:
        """How often the batch has doubled when an update starts."""
        if self.thresholds is not None:
            return sum(at.start >= at.to_samples(threshold) for threshold in self.thresholds)
        doublings = 0
        for critical in measured_before(at):
            following = self.start << (doublings + 1)
            doublings += following <= full and critical > following
        return doublings

    def check(self, at: Progress, full: int) -> None:
        """Refuse thresholds that do not rise within the run, or do not lead from the first batch to the full one.

        Raises:
            PlanError: they do not.
        """
        check_start(Duration(self.start, "samples"), at)
        steps = math.log2(full / self.start)
        if steps != int(steps):
            raise PlanError(
                f"from the start of {self.start} the batch doubles and never is {full}: take a full batch of "
                f"{self.start << round(steps)}, or another start"
            )
        if self.thresholds is None:
            return
        places = [at.to_samples(threshold) for threshold in self.thresholds]
        if len(places) != steps:
            raise PlanError(
                f"there is one of the thresholds for each of the {int(steps)} times that the batch doubles from "
                f"{self.start} to {full}; found {len(places)}"
            )
        if any(later <= earlier for earlier, later in zip([0, *places], places, strict=False)):
            shown = ", ".join(map(str, self.thresholds))
            raise PlanError(f"thresholds rise from above 0; found {shown} ({places} samples)")
        if places and places[-1] >= at.total:
            raise PlanError(
                f"the last of the thresholds is {at.said(self.thresholds[-1])}, but {at.room}: lower it, or lengthen "
                "the run"
            )


@dataclass(frozen=True)
class _Doubled(Schedule):
    rule: CriticalBatchWarmup
    full: int
    measures: bool = False

    def value(self, at: Progress) -> float:
        return min(self.rule.start << self.rule.doublings(at, self.full), self.full) / self.full

    def monotone_until(self, at: Progress) -> float:
        return next_measurement(at) if self.measures else math.inf

    def check(self, at: Progress) -> None:
        self.rule.check(at, self.full)


@dataclass(frozen=True)
class _RaisedRate(Schedule):
    rule: CriticalBatchWarmup
    lr: Schedule
    full: int

    def value(self, at: Progress) -> float:
        return self.lr.value(at) * math.sqrt(1 << self.rule.doublings(at, self.full))

    def check(self, at: Progress) -> None:
        self.lr.check(at)

    def peaks(self) -> tuple[float, ...]:
        return tuple(peak * math.sqrt(self.full / self.rule.start) for peak in self.lr.peaks())
