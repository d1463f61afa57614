"""How a range of elements is cut into consecutive pieces: every executor cuts alike, so all agree on who owns what."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def cut(start: int, stop: int, parts: int, granule: int = 1) -> list[tuple[int, int]]:
    """`parts` consecutive ranges that cover [start, stop).

    Units of `granule` elements are dealt out as evenly as possible, the first ranges get one more; the last unit may be
    short and the last ranges empty. Boundaries are multiples of `granule` away from `start`.
    """
    ends = bounds(np.array([stop - start]), parts, granule)[0].tolist()
    return [(start + low, start + high) for low, high in pairwise(ends)]


def bounds(lengths: NDArray[np.int64], parts: int, granule: int = 1) -> NDArray[np.int64]:
    """`cut` for many ranges at once: where the pieces of ranges of `lengths` [L] begin and end, [L, parts + 1]."""
    units = -(-lengths // granule)
    each, more = np.divmod(units, parts)
    order = np.arange(parts + 1)
    ends = order * each[:, None] + np.minimum(order, more[:, None])
    return np.minimum(ends * granule, lengths[:, None])
