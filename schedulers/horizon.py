"""What a schedule is told about the run it is part of."""

from dataclasses import dataclass

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError
from gradwire.schedulers.trajectory import Trajectory


@checked(PlanError)
@dataclass(frozen=True)
class Measured:
    """A gradient noise scale that was measured during the run and changed its plan.

    Args:
        samples: Samples of the run after which it holds.
        noise_scale: Critical batch size in samples (arXiv 1812.06162), above 0.
    """

    samples: int
    noise_scale: float


@dataclass(frozen=True)
class Horizon:
    """The facts of a run by which durations turn into samples.

    Args:
        total: Samples of the whole run.
        granule: Batches are multiples of so many samples.
        context: Tokens of one sample.
        epoch_samples: Samples of one epoch; None where that is not known (streams).
        trajectory: Batch sizes over the run; None while they are being found.
        noise: What was measured so far, oldest first.
    """

    total: int
    granule: int = 1
    context: int = 1
    epoch_samples: int | None = None
    trajectory: Trajectory | None = None
    noise: tuple[Measured, ...] = ()

    def to_samples(self, duration: Duration | str, since: int = 0) -> int:
        """A duration in samples, rounded to whole ones, when it starts after `since` samples of the run.

        Per cents are of the whole run, tokens and epochs by their sizes, updates by the planned batch sizes.

        Raises:
            DurationError: the text is not a duration.
            PlanError: wall-clock time, epochs of unknown length, or updates while batch sizes are not known.
        """
        duration = Duration.parse(duration)
        amount = duration.amount
        match duration.unit:
            case "samples":
                return round(amount)
            case "tokens":
                return round(amount / self.context)
            case "%":
                return round(amount * self.total / 100)
            case "epochs":
                return round(amount * self._epoch(duration))
            case "updates":
                return self._updates(duration, since)
            case _:
                raise PlanError(
                    f"'{duration}' is wall-clock time, which a plan does not know: "
                    "write samples, tokens, updates, epochs or %"
                )

    def _epoch(self, duration: Duration) -> int:
        if self.epoch_samples is None:
            raise PlanError(
                f"'{duration}' needs the length of an epoch, and this data does not know its length: "
                "write samples, tokens or updates, or give the plan epoch_samples"
            )
        return self.epoch_samples

    def _updates(self, duration: Duration, since: int) -> int:
        if self.trajectory is None:
            raise PlanError(
                f"'{duration}' cannot be used inside a batch-size schedule, which decides how long an update is, "
                "other than as its `length`, nor in a learning rate that the batch size follows: write samples, "
                "tokens, epochs or %"
            )
        return self.trajectory.samples_after(self.trajectory.updates_after(since) + duration.amount) - since


@dataclass(frozen=True)
class Progress:
    """Where an update stands, as a schedule sees it: in samples from the beginning of the schedule's own piece.

    Args:
        start: Samples seen before the update.
        end: Samples seen after it; for batch schedules, which decide this, the same as `start`.
        total: Samples of the piece: the whole run for a schedule that stands alone.
        horizon: The run.
        offset: Samples of the run before the piece.
        peak: What the schedule's value will be multiplied with: the peak learning rate, the full batch size.
    """

    start: int
    end: int
    total: int
    horizon: Horizon
    offset: int = 0
    peak: float = 1.0

    def to_samples(self, duration: Duration | str) -> int:
        """A duration in samples, when it starts where the piece starts."""
        return self.horizon.to_samples(duration, self.offset)

    def said(self, duration: Duration | str) -> str:
        """A duration for a message, with its samples where it is in another unit."""
        duration = Duration.parse(duration)
        return str(duration) if duration.unit == "samples" else f"{duration} ({_samples(self.to_samples(duration))})"

    @property
    def room(self) -> str:
        """For a message: how long the piece is."""
        whole = self.offset == 0 and self.total == self.horizon.total
        return (
            f"the run has only {_samples(self.total)}" if whole else f"only {_samples(self.total)} of the run are left"
        )

    def piece(self, first: int, last: int) -> "Progress":
        """The same place seen from the piece between two samples of this one; outside it, from its nearer end."""
        total = max(last - first, 0)
        return Progress(
            start=min(max(self.start - first, 0), total),
            end=min(max(self.end - first, 0), total),
            total=total,
            horizon=self.horizon,
            offset=self.offset + first,
            peak=self.peak,
        )

    def times(self, number: float) -> "Progress":
        """The same place for a schedule that is multiplied with a number."""
        return Progress(self.start, self.end, self.total, self.horizon, self.offset, self.peak * number)


def _samples(count: int) -> str:
    return f"{count} sample{'' if count == 1 else 's'}"
