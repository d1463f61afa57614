"""Limits on a field's value, written in its annotation: `size: Annotated[int, Range(ge=1)]`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Range:
    """Limits of a number (of each number, in a list); what is None does not limit.

    Args:
        ge: Smallest value.
        gt: Every value is larger than this.
        le: Largest value.
        lt: Every value is smaller than this.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def complaint(self, value: object) -> str | None:
        """What is wrong with `value`, or None where it lies within the limits (or is no number)."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        inside = (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )
        return None if inside else f"must be {self}, found {value}"

    def __str__(self) -> str:
        signs = (("at least", self.ge), ("more than", self.gt), ("at most", self.le), ("less than", self.lt))
        return " and ".join(f"{sign} {limit}" for sign, limit in signs if limit is not None)


@dataclass(frozen=True)
class Measured:
    """How a Duration may be given.

    Args:
        by: `progress` (samples, tokens, updates, epochs, % of the run) or `wall-clock` (seconds, minutes, hours).
    """

    by: Literal["progress", "wall-clock"]

    def complaint(self, unit: str) -> str | None:
        """What is wrong with a duration in `unit`, or None."""
        wall_clock = unit.rstrip("s") in ("second", "minute", "hour")
        if wall_clock == (self.by == "wall-clock"):
            return None
        if self.by == "wall-clock":
            return f"must be wall-clock time (seconds, minutes or hours), found {unit}"
        return f"must be samples, tokens, updates, epochs or % of the run, found {unit}"


@dataclass(frozen=True)
class HostSpan:
    """How a number of hosts that may change is written: MIN:MAX."""

    def complaint(self, value: str) -> str | None:
        """What is wrong with it, or None."""
        from gradwire.trainer.launch.hosts import Hosts

        try:
            Hosts.of(value)
        except ValueError as error:
            return str(error)
        return None
