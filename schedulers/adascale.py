"""AdaScale: a learning rate that follows what a larger batch was measured to be worth."""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from operator import attrgetter

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError, ScheduleError
from gradwire.schedulers.horizon import Horizon, Measured, Progress
from gradwire.schedulers.scaling import Betas, Scaled, Scaling, check_reference
from gradwire.schedulers.schedule import Constant, Schedule
from gradwire.schedulers.sizes import Sizes, follow


def gain(noise_scale: float, reference: int, batch_size: int) -> float:
    """How many updates of the reference batch one of a larger batch is worth: from 1 to batch_size / reference.

    r = (σ² + μ²) / (σ²/S + μ²) with S = batch_size / reference; here φ = σ²/μ² is noise_scale / reference, since a
    gradient of the reference batch has the variance σ² = 𝒮/reference.
    Source: Johnson et al. 2020 (AdaScale SGD, arXiv 2007.05105, section 3).

    Args:
        noise_scale: 𝒮/𝒢², samples.
        reference: Samples of the reference batch.
        batch_size: Samples of the batch.
    """
    phi = noise_scale / reference
    return (phi + 1) / (phi * reference / batch_size + 1)


@checked(ScheduleError)
@dataclass(frozen=True)
class AdaScale(Scaling):
    """The learning rate times the measured gain, on a clock that counts updates of the reference batch.

    An update of a batch S times the reference is worth r of its updates, 1 ≤ r ≤ S: the rate is r·η(τ), and τ advances
    by r. So `run_length` and the schedule are those of the run with the reference batch, and the run ends when that
    run would: it takes fewer updates, and more samples where the gain is below S. The gain is measured while training;
    until the first measurement it is 1. For SGD; the batch is constant.
    Source: Johnson et al. 2020 (AdaScale SGD, arXiv 2007.05105).

    Args:
        reference: Batch in samples that the learning rate and the length of the run are meant for.

    Raises:
        ScheduleError: the reference is not a number of samples from 1 on.
    """

    reference: int

    measures = True
    shown_for = "sgd"

    def __post_init__(self) -> None:
        check_reference(self.reference)

    def apply(self, lr: float, batch_size: int, betas: Betas | None = None, eps: float | None = None) -> Scaled:
        return Scaled(lr, betas, eps)  # the gain is in the schedule

    def follow(self, batch: Schedule, run_length: Duration, horizon: Horizon, lr: Schedule) -> tuple[Sizes, Schedule]:
        size = _constant(batch)
        if size < self.reference:
            raise PlanError(
                f"AdaScale is for batches from the reference on; the batch is {size} and the reference "
                f"{self.reference}: lower it",
                "scaling",
            )
        imitated = follow(self.reference * Constant(), run_length, replace(horizon, granule=1))
        total = imitated.trajectory.samples
        clock = _InvariantClock(self.reference, size, horizon.noise)
        sizes = follow(batch, Duration(clock.samples_at(total), "samples"), horizon)
        inner = replace(horizon, total=total, trajectory=imitated.trajectory)
        return sizes, _OnInvariantClock(lr, clock, inner)


@dataclass(frozen=True)
class _Span:
    """Between two measurements: where it starts, what all samples before it are worth, and the gain in it."""

    start: int
    worth: float
    gain: float


class _InvariantClock:
    """What the samples of a run are worth, in samples of the reference run."""

    def __init__(self, reference: int, batch: int, noise: tuple[Measured, ...]) -> None:
        self.reference = reference
        self._scale = reference / batch
        self._spans = [_Span(0, 0.0, 1.0)]
        for entry in noise:
            rate = gain(entry.noise_scale, reference, batch)
            self._spans.append(_Span(entry.samples, self.worth(entry.samples), rate))

    def gain_at(self, samples: int) -> float:
        """The gain of an update that starts after so many samples."""
        return self._span(samples).gain

    def worth(self, samples: int) -> float:
        """What the first so many samples are worth."""
        span = self._span(samples)
        return span.worth + (samples - span.start) * span.gain * self._scale

    def samples_at(self, worth: int) -> int:
        """After how many samples that is reached, if nothing more is measured."""
        span = self._spans[max(bisect_right(self._spans, worth, key=attrgetter("worth")) - 1, 0)]
        return span.start + math.ceil((worth - span.worth) / (span.gain * self._scale) - 1e-6)

    def _span(self, samples: int) -> _Span:
        return self._spans[bisect_right(self._spans, samples, key=attrgetter("start")) - 1]


@dataclass(frozen=True)
class _OnInvariantClock(Schedule):
    lr: Schedule
    clock: _InvariantClock
    horizon: Horizon

    def value(self, at: Progress) -> float:
        rate = self.clock.gain_at(at.start)
        start = self.clock.worth(at.start)
        end = start + rate * self.clock.reference
        inner = Progress(round(start), round(end), self.horizon.total, self.horizon)
        return rate * self.lr.value(inner)

    def check(self, at: Progress) -> None:
        self.lr.check(Progress(0, 0, self.horizon.total, self.horizon))

    def peaks(self) -> tuple[float, ...]:
        return self.lr.peaks()


def _constant(batch: Schedule) -> int:
    """The size of a batch schedule that is constant."""
    schedule = getattr(batch, "schedule", batch)
    if not isinstance(schedule, Constant):
        raise PlanError(
            f"AdaScale needs one batch size for the whole run; found {type(schedule).__name__}: take a constant batch, "
            "or another scaling rule",
            "scaling",
        )
    return int(max(batch.peaks()))
