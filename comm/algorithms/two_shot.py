"""Two-shot: everyone to everyone, twice. Fewest rounds, and values are encoded only once each way."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.comm.rounds import Algorithm, Round


@dataclass(frozen=True)
class TwoShot(Algorithm):
    """One round each way: every position sends each other one its chunk, whose owner adds in the order of positions."""

    name: ClassVar[str] = "two_shot"

    def rounds(self, ranks: int) -> int:
        """1 (0 where a position is alone)."""
        return min(1, ranks - 1)

    def reduce_scatter(self, ranks: int, index: int) -> Round:
        """The only round: P − 1 messages from every position."""
        sources, targets = np.divmod(np.arange(ranks * ranks), ranks)
        apart = sources != targets
        sources, targets = sources[apart], targets[apart]
        return Round(sources, targets, targets, np.ones_like(sources), add=True)

    def pattern(self, ranks: int, index: int) -> tuple[tuple[int, int], ...]:
        """One chunk to each other position."""
        return tuple((distance, 1) for distance in range(1, ranks))
