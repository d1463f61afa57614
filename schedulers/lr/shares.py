"""Shares of the peak and of a piece of the run, which the learning-rate schedules are made of."""

from collections.abc import Callable

from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import ScheduleError
from gradwire.schedulers.horizon import Progress


def check_share_of_peak(name: str, factor: float) -> None:
    """Refuse a factor that is not between 0 and 1.

    Raises:
        ScheduleError: it is not.
    """
    if not 0 <= factor <= 1:
        raise ScheduleError(f"the {name} is a share of the peak, between 0 and 1; found {factor!r}")


def down_to(floor: float, share: float) -> float:
    """Between the floor (share 0) and the peak (share 1)."""
    return floor + (1 - floor) * share


def left(at: Progress, length: Duration | str | None = None) -> Callable[[int], float]:
    """The share of a piece, or of its first `length`, that is left when an update starts: 1 down to 0."""
    whole = at.total if length is None else at.to_samples(length)
    return lambda start: (whole - start) / whole if start < whole else 0.0


def last_samples(at: Progress, duration: Duration | str) -> int:
    """The samples of the last so much of a piece; updates are counted back from its end."""
    duration, trajectory = Duration.parse(duration), at.horizon.trajectory
    if duration.unit != "updates" or trajectory is None:
        return at.to_samples(duration)
    end = at.offset + at.total
    return end - trajectory.samples_after(max(trajectory.updates_after(end) - duration.amount, 0))
