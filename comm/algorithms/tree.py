"""Binomial trees: one root and everybody else, in ⌈log₂P⌉ rounds."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.comm.rounds import Indices, Round


@dataclass(frozen=True)
class Tree:
    """Broadcast, reduce, scatter and gather over a line of positions, from or to position `root`.

    In a broadcast and a reduce the whole tensor is one chunk; in a scatter and a gather chunk c belongs to position c.
    """

    name: ClassVar[str] = "tree"

    def rounds(self, ranks: int) -> int:
        """⌈log₂P⌉."""
        return (ranks - 1).bit_length()

    def broadcast(self, ranks: int, root: int, index: int) -> Round:
        """Those who have the tensor hand it on, so their number doubles."""
        parents, children, _ = _edges(ranks, self.rounds(ranks) - 1 - index)
        zeros, ones = np.zeros_like(parents), np.ones_like(parents)
        return Round((parents + root) % ranks, (children + root) % ranks, zeros, ones, add=False)

    def reduce(self, ranks: int, root: int, index: int) -> Round:
        """The broadcast backwards, adding."""
        forwards = self.broadcast(ranks, root, self.rounds(ranks) - 1 - index)
        return Round(forwards.targets, forwards.sources, forwards.starts, forwards.counts, add=True)

    def scatter(self, ranks: int, root: int, index: int) -> Round:
        """Those who have chunks hand on the half that belongs further on."""
        parents, children, counts = _edges(ranks, self.rounds(ranks) - 1 - index)
        targets = (children + root) % ranks
        return Round((parents + root) % ranks, targets, targets, counts, add=False)

    def gather(self, ranks: int, root: int, index: int) -> Round:
        """The scatter backwards."""
        return self.scatter(ranks, root, self.rounds(ranks) - 1 - index).backwards()


def _edges(ranks: int, level: int) -> tuple[Indices, Indices, Indices]:
    """Parents, children 2^level further on, and the size of the subtree under each child, counted from the root."""
    reach = 2**level
    children = np.arange(reach, ranks, 2 * reach)
    return children - reach, children, np.minimum(reach, ranks - children)
