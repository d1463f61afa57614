"""The plan of a run: batch size and optimizer settings as functions of the clock."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.clock import Clock
from gradwire.schedulers.coupling import Coupled
from gradwire.schedulers.duration import LARGEST, Duration
from gradwire.schedulers.errors import PlanError, about
from gradwire.schedulers.horizon import Horizon, Measured, Progress
from gradwire.schedulers.scaling import Betas, NoScaling, Scaled, Scaling
from gradwire.schedulers.schedule import Constant, Schedule


@dataclass(frozen=True)
class Step:
    """What one update does.

    Args:
        batch_size: Samples of the global batch; 0 when the run is over.
        lr: Learning rate.
        betas: Adam's betas; None where the plan was given none.
        eps: Adam's epsilon; None where the plan was given none.
    """

    batch_size: int
    lr: float
    betas: Betas | None = None
    eps: float | None = None


@checked(PlanError)
class Plan:
    """Batch size and learning rate over a whole run, as pure functions of the samples seen.

    Neither depends on the number of calls, of ranks or of accumulated micro-batches, so a resumed or resized run sees
    the same values at the same clock. Every batch is a whole number of granules except the last, which takes what
    remains, and is scaled as the batch that it is: the batches sum to `total_samples`.

    Args:
        lr: Peak learning rate, or one multiplied with a schedule: `3e-4 * Warmup("10%").then(Cosine())`.
        batch: Global batch in samples, or one multiplied with a schedule, `256 * LinearWarmup("5%")`, or with a
            coupling, which plans the learning rate as well: `256 * Seesaw(start=32)`.
        scaling: How the learning rate follows the batch size.
        run_length: Length of the run: samples, tokens, updates or epochs. A part of a sample is rounded.
        granule: Batches are multiples of so many samples.
        context: Tokens of one sample.
        epoch_samples: Samples of one epoch; None where that is not known.
        betas: Adam's betas, for rules that scale them.
        eps: Adam's epsilon, for rules that scale it.
        noise: What a run has measured and decided so far, for rules that measure; see `decide`.

    Attributes:
        measures: Whether the plan depends on what is measured during the run.
        noise: The log of measurements.
        peak_lr: The learning rate that the plan was given, before its schedule and its scaling rule.

    Raises:
        DurationError: a text that is not a duration.
        PlanError: the parts do not fit together.
    """

    def __init__(
        self,
        *,
        lr: float | Schedule,
        batch: int | Schedule | Coupled,
        run_length: Duration | str,
        scaling: Scaling = NoScaling(),  # noqa: B008 - frozen
        granule: int = 1,
        context: int = 1,
        epoch_samples: int | None = None,
        betas: Betas | None = None,
        eps: float | None = None,
        noise: Sequence[Measured] = (),
    ) -> None:
        for name, count in (("granule", granule), ("context", context), ("epoch_samples", epoch_samples)):
            if count is not None and count < 1:
                raise PlanError(f"{name} is a number from 1 on; found {count!r}", name)
        _check_adam(betas, eps)
        with about("lr"):
            lr = lr if isinstance(lr, Schedule) else lr * Constant()
        if not lr.peaks():
            raise PlanError("the learning-rate schedule has no peak: multiply it, as in 3e-4 * Warmup('10%')", "lr")
        self._given: dict[str, Any] = {
            "lr": lr,
            "batch": batch,
            "run_length": run_length,
            "scaling": scaling,
            "granule": granule,
            "context": context,
            "epoch_samples": epoch_samples,
            "betas": betas,
            "eps": eps,
        }
        self.noise = tuple(noise)
        self.peak_lr = max(lr.peaks())
        sizes, lr = _split(batch, lr, scaling)
        with about("batch"):
            full = _full_batch(sizes, granule)
        self.measures = sizes.measures or scaling.measures
        self._most = full if sizes.measures else None
        self._scaling = scaling.with_reference(full)
        self._betas, self._eps = betas, eps
        with about("run_length"):
            length = _length(run_length, sizes)
        horizon = Horizon(0, granule, context, epoch_samples, noise=self.noise)
        with about("batch"):
            self._sizes, self._lr = self._scaling.follow(sizes, length, horizon, lr)
        trajectory = self._sizes.trajectory
        _check_countable(trajectory.samples, context, run_length)
        self._horizon = replace(horizon, total=trajectory.samples, trajectory=trajectory)
        self._check(sizes, batch)

    def _check(self, sizes: Schedule, batch: int | Schedule | Coupled) -> None:
        """Refuse at once what would only show in the middle of the run."""
        begin = Progress(0, 0, self.total_samples, self._horizon)
        with about("batch"):
            sizes.check(begin)
        with about("lr"):
            self._lr.check(begin)
        with about("batch"):
            if isinstance(batch, Coupled):
                batch.check_reached(self.largest_batch)
        with about("scaling"):
            self.peak()
        with about("lr"):  # values that are no numbers
            for samples in (0, self.total_samples):
                self.at(Clock(samples))

    def decide(self, clock: Clock, noise_scale: float) -> "Plan | None":
        """What a noise scale that was measured up to a clock changes: the plan from there on, or None for nothing.

        A change of the learning rate below 1 % is none.

        Args:
            clock: The samples seen so far.
            noise_scale: Critical batch size in samples, above 0.

        Raises:
            PlanError: it is older than the last one in the log.
        """
        if self.noise and clock.samples < self.noise[-1].samples:
            raise PlanError(
                f"a noise scale of {self.noise[-1].samples} samples is in the log, and one of {clock.samples} came "
                "after it: measurements are taken in the order of the run"
            )
        if not self.measures or not 0 < noise_scale < math.inf or self.finished(clock):
            return None
        other = self.measured([*self.noise, Measured(clock.samples, noise_scale)])
        now, then = self.at(clock), other.at(clock)
        same = now.batch_size == then.batch_size and math.isclose(now.lr, then.lr, rel_tol=0.01)
        return None if same else other

    def measured(self, noise: Sequence[Measured]) -> "Plan":
        """The same plan with another log of measurements, oldest first.

        Raises:
            PlanError: the parts do not fit together with it.
        """
        return Plan(**self._given, noise=noise)

    @property
    def total_samples(self) -> int:
        """Samples of the whole run."""
        return self._horizon.total

    @property
    def total_updates(self) -> int:
        """Updates of the whole run."""
        return self._sizes.trajectory.updates

    def updates_left(self, clock: Clock) -> int:
        """Updates from a clock to the end of the run, by its samples: its updates may be those of another plan."""
        return self._sizes.updates_from(clock.samples)

    @property
    def largest_batch(self) -> int:
        """The largest global batch of the run, in samples; where sizes are measured, the largest possible."""
        return self._most or self._sizes.trajectory.largest

    @property
    def smallest_batch(self) -> int:
        """The smallest global batch of the run, in samples; often the last, which takes what remains."""
        return self._sizes.trajectory.smallest

    def peak(self) -> Scaled:
        """The optimizer's settings at the largest batch, with the learning rate before its schedule."""
        return self._scaling.apply(self.peak_lr, self.largest_batch, self._betas, self._eps)

    def at(self, clock: Clock) -> Step:
        """What the update at this clock does; past the end of the run, a batch of 0 and the values that it ends on."""
        start = min(clock.samples, self.total_samples)
        planned = self._sizes.at(start)
        size = min(planned, self.total_samples - start)
        lr = self._lr.value(Progress(start, start + size, self.total_samples, self._horizon))
        scaled = self._scaling.apply(lr, size or planned, self._betas, self._eps)
        return Step(size, scaled.lr, scaled.betas, scaled.eps)

    def finished(self, clock: Clock) -> bool:
        """Whether the run is over."""
        return clock.samples >= self.total_samples

    def after(self, clock: Clock) -> Clock:
        """The clock after the update at this one; the same clock once the run is over."""
        size = self.at(clock).batch_size
        return clock.advance(size, size * self._horizon.context) if size else clock

    def to_samples(self, duration: Duration | str) -> int:
        """A duration from the start of the run, in samples rounded to whole ones.

        Raises:
            PlanError: it is wall-clock time, or epochs of unknown length.
        """
        return self._horizon.to_samples(duration)

    def updates(self, clock: Clock = Clock()) -> Iterator[tuple[Clock, Step]]:  # noqa: B008 - frozen
        """Every update from a clock to the end of the run, with the clock before it, without training."""
        while not self.finished(clock):
            step = self.at(clock)
            yield clock, step
            clock = clock.advance(step.batch_size, step.batch_size * self._horizon.context)


def _split(batch: int | Schedule | Coupled, lr: Schedule, scaling: Scaling) -> tuple[Schedule, Schedule]:
    """The batch-size schedule and the learning-rate schedule."""
    if isinstance(batch, Coupled):
        if not isinstance(scaling, NoScaling):
            name = type(batch.coupling).__name__
            raise PlanError(
                f"{name} plans the learning rate together with the batch size, and {type(scaling).__name__} would "
                "change it once more: take one of the two (scaling: none)",
                "scaling",
            )
        return batch.split(lr)
    return batch if isinstance(batch, Schedule) else batch * Constant(), lr


def _length(run_length: Duration | str, sizes: Schedule) -> Duration:
    length = Duration.parse(run_length)
    if sizes.measures and length.unit == "updates":
        raise PlanError(
            f"a run of '{length}' has no known number of samples while batch sizes are measured: give its length in "
            "samples, tokens or epochs"
        )
    return length


def _check_adam(betas: Betas | None, eps: float | None) -> None:
    if betas is not None and not all(0 <= beta < 1 for beta in betas):
        raise PlanError(f"Adam's betas lie in [0, 1); found {betas!r}", "betas")
    if eps is not None and eps < 0:
        raise PlanError(f"Adam's epsilon is a number from 0 on; found {eps!r}", "eps")


def _check_countable(samples: int, context: int, run_length: Duration | str) -> None:
    if samples * context > LARGEST:
        raise PlanError(
            f"a run of '{run_length}' has {samples:.2g} samples of {context} tokens, more than the 2**63 that can be "
            "counted: give it a shorter run_length",
            "run_length",
        )


def _full_batch(batch: Schedule, granule: int) -> int:
    """The full batch of a schedule, each of its peaks checked."""
    peaks = batch.peaks()
    if not peaks:
        raise PlanError("the batch-size schedule has no size: multiply it, as in 256 * LinearWarmup('5%')")
    for peak in peaks:
        if not 1 <= peak <= LARGEST or int(peak) != peak:
            raise PlanError(f"a batch is a whole number of samples from 1 on; found {peak!r}")
        if peak % granule:
            nearest = max(round(peak / granule), 1) * granule
            raise PlanError(f"the granule {granule} does not divide the batch of {peak:g}: take {nearest}")
    return int(max(peaks))
