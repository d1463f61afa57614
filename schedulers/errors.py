"""What can be wrong with a schedule. Every message says what was found, what was expected and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager


class SchedulerError(ValueError):
    """Base of all errors of this library.

    Args:
        message: What was found, what was expected, what to do.
        part: The argument of `Plan` that it is about: lr, batch, scaling, run_length, …; None where that is not known.
    """

    def __init__(self, message: str, part: str | None = None) -> None:
        super().__init__(message)
        self.part = part


class DurationError(SchedulerError):
    """A text that is not a duration, or a duration in a unit that does not fit."""


class ClockError(SchedulerError):
    """Counts that no clock can have."""


class ScheduleError(SchedulerError):
    """A parameter of a schedule or of a scaling rule that is out of range or of the wrong kind."""


class PlanError(SchedulerError):
    """Parts of a plan that are fine alone and do not fit together, or are none."""


@contextmanager
def about(part: str) -> Iterator[None]:
    """Errors that are raised here are about this part of a plan, unless they name one themselves."""
    try:
        yield
    except SchedulerError as error:
        error.part = error.part or part
        raise
