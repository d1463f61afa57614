"""How far a run has come."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gradwire.schedulers.errors import ClockError


@dataclass(frozen=True)
class Clock:
    """Counts of what a run has seen; every schedule is a function of it.

    Args:
        samples: Training samples, those of skipped updates included.
        tokens: Samples times context, padding included.
        updates: Optimizer updates attempted.
        skipped: Those of them that left the weights as they were (gradient not finite).

    Raises:
        ClockError: a count is negative or not a whole number, or more updates were skipped than attempted.
    """

    samples: int = 0
    tokens: int = 0
    updates: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "tokens", "updates", "skipped"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise ClockError(f"a clock's {name} must be a whole number from 0 on, found {count!r}")
        if self.skipped > self.updates:
            raise ClockError(f"a clock with {self.updates} updates cannot have skipped {self.skipped}")

    def advance(self, samples: int, tokens: int | None = None, *, skipped: bool = False) -> "Clock":
        """The clock after one more update.

        Args:
            samples: Size of the update's global batch.
            tokens: Its tokens; None means one a sample.
            skipped: Whether the update left the weights as they were; it counts all the same.
        """
        return Clock(
            samples=self.samples + samples,
            tokens=self.tokens + (samples if tokens is None else tokens),
            updates=self.updates + 1,
            skipped=self.skipped + int(skipped),
        )

    def to_dict(self) -> dict[str, int]:
        """The counts by name, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, counts: Mapping[str, int]) -> "Clock":
        """The clock that `to_dict` wrote.

        Raises:
            ClockError: a count is missing, unknown or impossible.
        """
        expected = set(cls.__dataclass_fields__)
        if set(counts) != expected:
            raise ClockError(
                f"a clock has {', '.join(sorted(expected))}; found {', '.join(sorted(counts)) or 'nothing'}"
            )
        return cls(**counts)
