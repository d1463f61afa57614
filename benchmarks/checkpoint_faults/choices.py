"""Which operations are struck: each one, or a sample that touches every kind."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from benchmarks.checkpoint_faults.disk import Contents

Case = tuple[str, Contents]

_FOLDERS = ("packs", "parts", "commits", "tags", "journal")


def kind_of(operation: Any) -> str:
    """What an operation or request does, and to which kind of object."""
    above = operation.path.strip("/").split("/")
    return f"{operation.kind} {next((folder for folder in _FOLDERS if folder in above), 'other')}"


class Choice(Protocol):
    """Picks from what could be struck."""

    def numbers(self, kinds: Callable[[], Sequence[str]]) -> Iterable[int]:
        """Numbers of operations, rising; they may go beyond the last one.

        Args:
            kinds: Tells the kinds of the operations that there are, in order.
        """

    def some(self, cases: Iterable[Case]) -> Sequence[Case]:
        """Some of what may have become of one operation."""


class Everything:
    """All of it."""

    def numbers(self, kinds: Callable[[], Sequence[str]]) -> Iterable[int]:
        return itertools.count()

    def some(self, cases: Iterable[Case]) -> Sequence[Case]:
        return list(cases)


class Sample:
    """One operation of each kind that was not struck yet, a few others of each fault, and a few of the cases of each.

    Args:
        seed: Of the draw.
        operations: Operations for each fault; more where more kinds were not struck yet.
        cases: Cases for each operation, of names that were drawn least.
    """

    def __init__(self, seed: int, operations: int, cases: int) -> None:
        self._random = random.Random(seed)
        self._operations = operations
        self._cases = cases
        self._drawn: Counter[str] = Counter()

    def numbers(self, kinds: Callable[[], Sequence[str]]) -> Iterable[int]:
        found = list(kinds())
        new = {*found} - {*self._drawn}
        return sorted(self._draw(dict(enumerate(found)), max(self._operations, len(new))))

    def some(self, cases: Iterable[Case]) -> Sequence[Case]:
        found = list(cases)
        return [found[number] for number in self._draw({n: name for n, (name, _) in enumerate(found)}, self._cases)]

    def _draw(self, left: dict[int, str], count: int) -> list[int]:
        """Numbers of things by name, the names that were drawn least first."""
        drawn: list[int] = []
        while left and len(drawn) < count:
            least = min(self._drawn[name] for name in left.values())
            name = self._random.choice(sorted({name for name in left.values() if self._drawn[name] == least}))
            drawn.append(self._random.choice([number for number, each in left.items() if each == name]))
            del left[drawn[-1]]
            self._drawn[name] += 1
        return drawn


EVERYTHING = Everything()
