"""What can go wrong with a report."""


class ReportError(ValueError):
    """Base of the report's errors."""

    exit_code = 2


class TrialsError(ReportError):
    """The trials of a sweep contradict each other."""
