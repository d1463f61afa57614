"""What is to become of the objects of a store, and why."""

from dataclasses import dataclass

from gradwire.checkpoint.commit import Commit


@dataclass(frozen=True)
class Verdict:
    """What becomes of an object.

    Args:
        name: Its name.
        goes: Whether it is to be removed.
        reason: Why it goes or stays.
        size: Its bytes, where known.
    """

    name: str
    goes: bool
    reason: str
    size: int | None = None


@dataclass(frozen=True)
class Plan:
    """What becomes of every object of a store.

    Args:
        verdicts: One for each object; empty where another writer has taken over.
        warnings: What keeps more than was asked for.
        commits: The commits that go, oldest first.
        writer_at: The number that the writer who cleans up wrote last; None where another cleans up.
    """

    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]
    commits: tuple[Commit, ...]
    writer_at: int | None

    @property
    def going(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.goes)
