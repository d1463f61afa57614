"""Fewer points that draw the same picture: of each stretch the smallest and the largest value are kept."""

import itertools

import numpy as np

from gradwire.trainer.report.metrics import Floats, Integers


def thin(values: Floats, most: int) -> Integers:
    """Places of the points to draw, rising: the first, the last, and of equally long stretches minimum and maximum.

    Nothing is averaged, so that every point drawn is one that was measured and no spike is lost.

    Args:
        values: Finite values in their order.
        most: The most points to keep, at least 4; where there are no more, all are kept.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    stretches = (most - 2) // 2
    edges = np.linspace(0, count, stretches + 1).astype(np.int64)
    kept = {0, count - 1}
    for start, stop in itertools.pairwise(edges.tolist()):
        stretch = values[start:stop]
        kept |= {start + int(stretch.argmin()), start + int(stretch.argmax())}
    return np.array(sorted(kept), dtype=np.int64)


def spread(count: int, most: int) -> Integers:
    """At most so many of `count` places, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
