from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire.comm.pieces import bounds, cut


def test_units_are_dealt_evenly_and_the_first_pieces_get_one_more():
    assert cut(0, 10, 4) == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert cut(5, 5, 2) == [(5, 5), (5, 5)]


def test_granules_stay_together_and_the_last_may_be_short():
    assert cut(100, 110, 2, 4) == [(100, 108), (108, 110)]
    assert cut(0, 3, 3, 4) == [(0, 3), (3, 3), (3, 3)]


@given(st.integers(0, 99), st.integers(0, 999), st.integers(1, 40), st.integers(1, 300))
def test_pieces_cover_the_range_in_order_at_multiples_of_the_granule(start, length, parts, granule):
    pieces = cut(start, start + length, parts, granule)
    assert len(pieces) == parts
    assert pieces[0][0] == start and pieces[-1][1] == start + length
    assert all(before[1] == after[0] for before, after in pairwise(pieces))
    assert all((low - start) % granule == 0 or low == start + length for low, _ in pieces)
    sizes = [-(-(high - low) // granule) for low, high in pieces]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


@given(st.lists(st.integers(0, 500), min_size=1, max_size=5), st.integers(1, 20), st.integers(1, 64))
def test_many_ranges_are_cut_as_one_is(lengths, parts, granule):
    ends = bounds(np.array(lengths), parts, granule)
    for row, length in zip(ends.tolist(), lengths, strict=True):
        assert list(pairwise(row)) == cut(0, length, parts, granule)
