"""What can be wrong with a schedule. Every message says what was found, what was expected and what to do."""


class SchedulerError(ValueError):
    """Base of all errors of this library."""


class DurationError(SchedulerError):
    """A text that is not a duration, or a duration in a unit that does not fit."""


class ClockError(SchedulerError):
    """Counts that no clock can have."""


class ScheduleError(SchedulerError):
    """A parameter of a schedule or of a scaling rule that is out of range."""


class PlanError(SchedulerError):
    """Parts of a plan that are fine alone and do not fit together."""
