"""Couplings: published rules that plan the batch size and the learning rate together.

They contradict each other: Seesaw lowers the rate when the batch grows, critical-batch warm-up raises it, Smith's rule
leaves it. So a coupling is always chosen by name, and none goes together with a scaling rule, which would move the
rate a second time. A coupling is multiplied with the full batch, like a schedule: `512 * Seesaw(start=64)`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError, ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.measured import check_growth, check_start, measured_before, next_measurement
from gradwire.schedulers.schedule import Schedule
from gradwire.schedulers.trajectory import whole_batch


class Coupling(ABC):
    """A rule for batch size and learning rate together. `start` is the first batch; the learning rate holds there."""

    start: int

    @abstractmethod
    def batch(self, lr: Schedule, full: int) -> Schedule:
        """The batch size in samples, given the learning-rate schedule and the full batch."""

    @abstractmethod
    def rate(self, lr: Schedule, full: int) -> Schedule:
        """The learning rate in place of `lr`."""

    def check_reached(self, largest: int, full: int) -> None:  # noqa: B027 - most need none
        """Refuse a full batch that the run does not reach.

        Raises:
            PlanError: it does not.
        """

    def __rmul__(self, full: int) -> "Coupled":
        return Coupled(full, self)


BatchRule = Schedule | Coupling  # what the full batch can be multiplied with


@dataclass(frozen=True)
class Coupled:
    """A coupling and the full batch in samples, which the batch never exceeds.

    Raises:
        PlanError: the batch is no whole number of samples from 1 on.
    """

    full: int
    coupling: Coupling

    def __post_init__(self) -> None:
        if self.full < 1 or int(self.full) != self.full:
            raise PlanError(f"a batch is a whole number of samples from 1 on; found {self.full!r}")

    def split(self, lr: Schedule) -> tuple[Schedule, Schedule]:
        """The batch-size schedule and the learning-rate schedule."""
        return self.coupling.batch(lr, self.full), self.coupling.rate(lr, self.full)

    def check_reached(self, largest: int) -> None:
        """Refuse a full batch that the run does not reach: `largest` is what it reaches.

        Raises:
            PlanError: it does not.
        """
        self.coupling.check_reached(largest, self.full)


@dataclass(frozen=True)
class GrowInsteadOfDecay(Coupling):
    """Where the learning rate would fall by `factor`, the batch grows by it instead, until it is full.

    From then on the rate falls as its schedule says. A schedule that falls smoothly is taken in stairs of `factor`.
    Source: Smith et al. 2018 (arXiv 1711.00489, section 4): the noise of SGD, η·N/(B·(1−m)), stays what it would be.

    Args:
        start: Batch in samples until the rate would first have fallen by `factor`.
        factor: Step of the stairs, above 1.

    Raises:
        ScheduleError: a parameter is out of range.
    """

    start: int
    factor: float = 2.0

    power = 1.0  # the rate is multiplied with (batch / start) ** power

    def __post_init__(self) -> None:
        check_start(self.start)
        if not (math.isfinite(self.factor) and self.factor > 1):
            raise ScheduleError(f"factor is the step of the batch size, a number above 1; found {self.factor!r}")

    def batch(self, lr: Schedule, full: int) -> Schedule:
        return full * _GrownBatch(self, lr, full)

    def rate(self, lr: Schedule, full: int) -> Schedule:
        return _GrownRate(self, lr, full)

    def check_reached(self, largest: int, full: int) -> None:
        if largest < full:
            raise PlanError(
                f"the batch is to grow from {self.start} to {full}, but the learning rate falls so little that it "
                f"only reaches {largest}: lower the rate's floor, or set the full batch to {largest}"
            )

    def grown(self, decay: float, full: int) -> tuple[float, float]:
        """How far the batch has grown (times `start`), and what is left for the rate to fall by otherwise."""
        most = full / self.start
        steps = math.floor(math.log(1 / decay, self.factor) + 1e-9) if decay > 0 else math.inf
        last = math.ceil(math.log(most, self.factor) - 1e-9)
        if steps >= last:
            return most, min(decay, self.factor**-last) if last else decay
        return self.factor**steps, self.factor**-steps


class Seesaw(GrowInsteadOfDecay):
    """Where the learning rate would fall by `factor`, it falls by its root and the batch grows by `factor`, until full.

    From then on the rate falls as its schedule says. A schedule that falls smoothly is taken in stairs of `factor`.
    Source: Seesaw, 2025 (arXiv 2510.14717): for normalised SGD and Adam the same progress at equal samples in fewer
    updates, up to 1 − 2/π = 36.3 % fewer with `QuarterCosine`.

    Args:
        start: Batch in samples until the rate would first have fallen by `factor`.
        factor: Step of the stairs, above 1.

    Raises:
        ScheduleError: a parameter is out of range.
    """

    power = 0.5


@dataclass(frozen=True)
class _GrownBatch(Schedule):
    rule: GrowInsteadOfDecay
    lr: Schedule
    full: int

    def value(self, at: Progress) -> float:
        growth, _ = self.rule.grown(self.lr.decay(at), self.full)
        return self.rule.start * growth / self.full

    def monotone_until(self, at: Progress) -> float:
        return self.lr.monotone_until(at)

    def check(self, at: Progress) -> None:
        check_growth(self.rule.start, at)


@dataclass(frozen=True)
class _GrownRate(Schedule):
    rule: GrowInsteadOfDecay
    lr: Schedule
    full: int

    def value(self, at: Progress) -> float:
        decay = self.lr.decay(at)
        if decay == 0:
            return 0.0
        growth, left = self.rule.grown(decay, self.full)
        ratio = whole_batch(self.rule.start * growth, at.horizon.granule) / self.rule.start
        return self.lr.value(at) / decay * left * math.pow(ratio, self.rule.power)

    def check(self, at: Progress) -> None:
        self.lr.check(at)

    def peaks(self) -> tuple[float, ...]:
        return self.lr.peaks()


@dataclass(frozen=True)
class CriticalBatchWarmup(Coupling):
    """The batch doubles, and the learning rate rises by √2, each time the critical batch has grown to twice the batch.

    Source: critical-batch warm-up, 2025 (arXiv 2505.23971). `thresholds` says when, from measurements of an earlier
    run; without them the noise scale is measured during this one and stands for the critical batch.

    Args:
        start: First batch in samples; `optimizer.lr` holds there.
        thresholds: When the batch doubles, each later than the one before; null measures.

    Raises:
        ScheduleError: `start` is no batch, or the thresholds do not rise.
        DurationError: a threshold is not a duration.
    """

    start: int
    thresholds: Sequence[Duration | str] | None = None

    def __post_init__(self) -> None:
        check_start(self.start)
        if self.thresholds is not None:
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
        """Refuse thresholds that do not rise, or do not lead from the first batch to the full one."""
        check_growth(self.start, at)
        steps = math.log2(full / self.start)
        if steps != int(steps):
            raise PlanError(
                f"the batch doubles from {self.start} and never is {full}: take {self.start << round(steps)}"
            )
        if self.thresholds is None:
            return
        places = [at.to_samples(threshold) for threshold in self.thresholds]
        if len(places) != steps:
            raise PlanError(
                f"from {self.start} to {full} the batch doubles {int(steps)} times; found {len(places)} thresholds"
            )
        if any(later <= earlier for earlier, later in zip([0, *places], places, strict=False)):
            shown = ", ".join(map(str, self.thresholds))
            raise PlanError(f"thresholds rise from above 0; found {shown} ({places} samples)")


@dataclass(frozen=True)
class _Doubled(Schedule):
    rule: CriticalBatchWarmup
    full: int
    measures: bool = field(default=False)

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
