"""What a run does when a snapshot fails: end, go on with a warning, and save less where the store is full."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Policy:
    """What becomes of a run whose snapshots fail.

    Args:
        on_failure: `raise` ends it at the first failure; `warn` lets it go on.
        failures: With `warn`: so many in a row are only warned of, the next one raises.

    Raises:
        ValueError: a value that does not exist.
    """

    on_failure: Literal["raise", "warn"] = "raise"
    failures: int = 3

    def __post_init__(self) -> None:
        if self.on_failure not in ("raise", "warn"):
            raise ValueError(f"on_failure must be 'raise' or 'warn', found {self.on_failure!r}")
        if self.failures < 1:
            raise ValueError(f"failures must be at least 1, found {self.failures}")

    def goes_on(self, standing: "Standing") -> bool:
        """Whether the run goes on after the failure that led to this standing."""
        return self.on_failure == "warn" and standing.failed <= self.failures


@dataclass(frozen=True)
class Standing:
    """What the snapshots so far call for; a function of their outcomes, hence the same on every rank.

    Each snapshot that finds the store full takes one more measure: the journal is dropped, then snapshots are saved at
    twice the interval, then saving pauses: a snapshot is only begun where there is room for it. Each one that succeeds
    takes the last measure back.

    Args:
        failed: Snapshots in a row that failed.
        measures: How many of the three measures are taken.
    """

    failed: int = 0
    measures: int = 0

    @property
    def journal(self) -> bool:
        """Whether updates should be journalled."""
        return self.measures < 1

    @property
    def widening(self) -> int:
        """What to multiply the interval between snapshots with."""
        return 1 if self.measures < 2 else 2

    @property
    def paused(self) -> bool:
        """Whether a snapshot is only begun where there is room for it."""
        return self.measures >= 3

    def after_success(self) -> "Standing":
        return Standing(0, max(self.measures - 1, 0))

    def after_failure(self, *, full: bool) -> "Standing":
        """Args:
        full: Whether the store was full.
        """
        return Standing(self.failed + 1, min(self.measures + 1, 3) if full else self.measures)

    def joined(self, other: "Standing") -> "Standing":
        """What two of them call for together."""
        return Standing(max(self.failed, other.failed), max(self.measures, other.measures))

    def __str__(self) -> str:
        measures = ("the journal is dropped", "the interval between snapshots is doubled", "saving pauses")
        return "; ".join(measures[: self.measures])
