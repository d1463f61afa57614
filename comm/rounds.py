"""A collective as data: rounds of transfers between the positions of a line, made on demand."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Message = tuple[int, int, int]  # peer, first chunk, number of chunks


@dataclass(frozen=True, eq=False)
class Round:
    """Transfers that may all be under way at once: what is sent is what was held before the round.

    Args:
        sources: Positions that send, int64 [N].
        targets: Positions that receive, int64 [N].
        starts: First chunk of each transfer, int64 [N].
        counts: Number of chunks of each, int64 [N]; the range is cyclic, start + count may pass the number of chunks.
        add: Targets add what they receive to what they hold, in the order in which transfers are listed; else they
            take it as it is.
    """

    sources: Indices
    targets: Indices
    starts: Indices
    counts: Indices
    add: bool

    def sends(self, position: int) -> list[Message]:
        """What `position` sends, as (target, start, count), in the order listed."""
        return self._messages(self.sources == position, self.targets)

    def receives(self, position: int) -> list[Message]:
        """What `position` receives, as (source, start, count), in the order listed."""
        return self._messages(self.targets == position, self.sources)

    def backwards(self) -> "Round":
        """The same transfers in the other direction, as copies."""
        return Round(self.targets, self.sources, self.starts, self.counts, add=False)

    def _messages(self, mine: NDArray[np.bool_], peers: Indices) -> list[Message]:
        chosen = np.flatnonzero(mine)
        columns = peers[chosen].tolist(), self.starts[chosen].tolist(), self.counts[chosen].tolist()
        return list(zip(*columns, strict=True))


class Algorithm(ABC):
    """A reduce-scatter over a line of positions, after which chunk c is complete at position c // pieces.

    The data is cut into positions × pieces chunks. The all-gather is the reduce-scatter backwards.
    """

    name: ClassVar[str]

    @property
    def pieces(self) -> int:
        """Chunks that end at each position."""
        return 1

    @abstractmethod
    def rounds(self, ranks: int) -> int:
        """Rounds that either direction takes over `ranks` positions."""

    @abstractmethod
    def reduce_scatter(self, ranks: int, index: int) -> Round:
        """Round `index` of the reduce-scatter."""

    def all_gather(self, ranks: int, index: int) -> Round:
        """Round `index` of the all-gather."""
        return self.reduce_scatter(ranks, self.rounds(ranks) - 1 - index).backwards()

    def pattern(self, ranks: int, index: int) -> tuple[tuple[int, int], ...]:
        """What every position sends in round `index` of the reduce-scatter, as (distance to the target, chunks).

        The algorithms are the same from every position, so this is all that pricing needs.
        """
        return tuple((target, count) for target, _, count in self.reduce_scatter(ranks, index).sends(0))


def waves(rooms: Indices) -> list[Indices]:
    """Places of transfers into `rooms`, in sets in which no room comes twice: the first into each, the second, …"""
    order = np.argsort(rooms, kind="stable")
    new = np.flatnonzero(np.diff(rooms[order], prepend=-1))
    turn = np.arange(len(rooms)) - np.repeat(new, np.diff(new, append=len(rooms)))
    return [np.sort(order[turn == number]) for number in range(int(turn.max(initial=-1)) + 1)]
