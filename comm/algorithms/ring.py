"""The ring: neighbors pass partial sums on. Least traffic, most rounds."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.comm.rounds import Algorithm, Round


@dataclass(frozen=True)
class Ring(Algorithm):
    """P − 1 rounds each way, one chunk to the next neighbor in each (Patarasuk and Yuan 2009).

    Chunk c sets out at position c + 1 and collects every position's part on its way around to c.

    Args:
        bidirectional: Half of each position's share travels the other way around at the same time; pays where a rank
            has a link of its own to each neighbor.
    """

    name: ClassVar[str] = "ring"

    bidirectional: bool = False

    @property
    def pieces(self) -> int:
        """One chunk a position, or one for each direction."""
        return 2 if self.bidirectional else 1

    def rounds(self, ranks: int) -> int:
        """P − 1."""
        return ranks - 1

    def reduce_scatter(self, ranks: int, index: int) -> Round:
        """Every position passes on what it completed in the round before."""
        here = np.arange(ranks)
        onward, chunks = (here + 1) % ranks, (here - 1 - index) % ranks
        if not self.bidirectional:
            return Round(here, onward, chunks, np.ones_like(here), add=True)
        return Round(
            np.concatenate([here, here]),
            np.concatenate([onward, (here - 1) % ranks]),
            np.concatenate([2 * chunks, 2 * ((here + 1 + index) % ranks) + 1]),
            np.ones(2 * ranks, dtype=np.int64),
            add=True,
        )

    def pattern(self, ranks: int, index: int) -> tuple[tuple[int, int], ...]:
        """One chunk to the next, and one to the previous position where bidirectional."""
        return ((1, 1), (ranks - 1, 1)) if self.bidirectional else ((1, 1),)
