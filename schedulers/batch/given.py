"""Batch sizes that are given beside the full batch, and what is refused about them."""

from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError, ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.trajectory import whole_batch


def parse_size(name: str, size: int | Duration | str) -> int | Duration:
    """A batch size: a number of samples, or a duration in samples or tokens.

    Raises:
        ScheduleError: it is neither, or zero.
        DurationError: a text that is not a duration.
    """
    if isinstance(size, int):
        check_positive(name, size)
        return size
    duration = Duration.parse(size)
    if duration.unit not in ("samples", "tokens") or not duration.amount:
        raise ScheduleError(f"the {name} is a number of samples or tokens, above 0; found '{duration}'")
    return duration


def as_duration(size: int | Duration | str) -> Duration:
    """A batch size with its unit: samples where it has none."""
    return Duration(size, "samples") if isinstance(size, int) else Duration.parse(size)


def check_positive(name: str, size: int) -> None:
    """Refuse a whole number that is no number of samples.

    Raises:
        ScheduleError: it is not.
    """
    if size < 1:
        raise ScheduleError(f"the {name} is a whole number of samples from 1 on; found {size!r}")


def check_start(start: Duration, at: Progress) -> None:
    """Refuse a first batch that is above the full one or, given in samples, not on the granule.

    Raises:
        PlanError: it is.
    """
    samples = at.to_samples(start)
    if samples > at.peak:
        raise PlanError(
            f"the start of the batch, {at.said(start)}, is above the full batch of {at.peak:g}: "
            "lower the start, or raise the full batch (batch.size)"
        )
    if start.unit == "samples":
        check_granule("start of the batch", samples, at)


def check_granule(name: str, size: int, at: Progress) -> None:
    """Refuse a size that is no whole number of granules.

    Raises:
        PlanError: it is not.
    """
    granule = at.horizon.granule
    if size % granule:
        nearest = whole_batch(size, granule)
        raise PlanError(f"the granule {granule} does not divide the {name}, {size}: take {nearest}")
