"""Halving-doubling: few rounds and least traffic, over any number of ranks."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.comm.rounds import Algorithm, Round


@dataclass(frozen=True)
class HalvingDoubling(Algorithm):
    """⌈log₂P⌉ rounds each way, P − 1 chunks sent in all: the circulant reduce-scatter (Träff, arXiv 2410.14234).

    With s halved (rounded up) from P to 1, position r sends the chunks that lie s and more past it to position r + s.
    For powers of two these are the volumes of recursive halving.
    """

    name: ClassVar[str] = "halving_doubling"

    def rounds(self, ranks: int) -> int:
        """⌈log₂P⌉."""
        return (ranks - 1).bit_length()

    def reduce_scatter(self, ranks: int, index: int) -> Round:
        """One message from every position, about half as long as the one before."""
        here = np.arange(ranks)
        ((distance, count),) = self.pattern(ranks, index)
        target = (here + distance) % ranks
        return Round(here, target, target, np.full_like(here, count), add=True)

    def pattern(self, ranks: int, index: int) -> tuple[tuple[int, int], ...]:
        """⌊s/2⌋ chunks to the position ⌈s/2⌉ on, where s = ⌈P / 2^index⌉."""
        span = -(-ranks // 2**index)
        return ((span - span // 2, span // 2),)
