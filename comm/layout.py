"""Where the segments of a tensor lie, and what a rank holds of each before every reduce-scatter."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.comm.pieces import cut

Range = tuple[int, int]  # elements [start, stop)


@dataclass(frozen=True)
class Portion:
    """What a rank holds of a segment before the reduce-scatter along an axis, and how that cuts it.

    Attributes:
        start: First element.
        stop: The one behind the last.
        chunks: The pieces it is cut into, in order, as element ranges.
        own: The rank's part of it afterwards.
    """

    start: int
    stop: int
    chunks: tuple[Range, ...]
    own: Range

    def spans(self, start: int, count: int) -> list[Range]:
        """Elements of `count` chunks from `start` on, wrapping around at the end; empty ones are left out."""
        stop = start + count
        parts = [(start, min(stop, len(self.chunks))), (0, stop - len(self.chunks))]
        spans = [(self.chunks[first][0], self.chunks[last - 1][1]) for first, last in parts if last > first]
        return [(low, high) for low, high in spans if high > low]


@dataclass(frozen=True)
class Step:
    """How an axis cuts: for a rank at `position` of `size`, into `pieces` chunks for every position."""

    size: int
    position: int
    pieces: int = 1


def portions(start: int, stop: int, steps: Sequence[Step], granule: int) -> tuple[Portion, ...]:
    """What this rank holds of the elements [start, stop) before each axis, in the order of `steps`."""
    found = []
    for step in steps:
        chunks = tuple(cut(start, stop, step.size * step.pieces, granule))
        mine = chunks[step.position * step.pieces : (step.position + 1) * step.pieces]
        own = (mine[0][0], mine[-1][1])
        found.append(Portion(start, stop, chunks, own))
        start, stop = own
    return tuple(found)


def segments(count: int, most: int, granule: int, least: int = 1) -> list[Range]:
    """Cut `count` elements into segments of at most `most` elements, and into at least `least` of them.

    The first segments grow and the last ones shrink, by halves: until the first has gone through a stage the next stage
    has nothing to do, and while the last one goes through the others have nothing left.

    Where `count` has fewer granules than segments, the last ones are empty and are left out.
    """
    ramp = [most // part for part in (8, 4, 2)]
    if count < 2 * sum(ramp) + most:
        ramp = []
    rest = count - 2 * sum(ramp)
    sizes = [stop - start for start, stop in cut(0, rest, max(math.ceil(rest / most), least), granule)]
    found, start = [], 0
    for size in (*ramp, *sizes, *reversed(ramp)):
        stop = min(start + math.ceil(size / granule) * granule, count)
        found.append((start, stop))
        start = stop
    return [(start, stop) for start, stop in found if stop > start]
