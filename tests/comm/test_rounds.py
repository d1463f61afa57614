import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.comm.algorithms import HalvingDoubling, Ring, TwoShot
from gradwire.comm.rounds import Round, waves

ALGORITHMS = [Ring(), Ring(bidirectional=True), TwoShot(), HalvingDoubling()]


def _round(add=True):
    return Round(np.array([0, 1, 0]), np.array([1, 2, 2]), np.array([5, 6, 7]), np.array([1, 2, 3]), add)


def test_a_position_finds_its_messages_in_the_order_listed():
    assert _round().sends(0) == [(1, 5, 1), (2, 7, 3)]
    assert _round().receives(2) == [(1, 6, 2), (0, 7, 3)]
    assert _round().sends(2) == []


def test_backwards_the_same_chunks_go_the_other_way_as_copies():
    back = _round().backwards()
    assert back.receives(0) == [(1, 5, 1), (2, 7, 3)] and back.sends(2) == [(1, 6, 2), (0, 7, 3)]
    assert not back.add


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("ranks", [2, 3, 8, 13])
def test_an_all_gather_is_the_reduce_scatter_backwards(algorithm, ranks):
    for index in range(algorithm.rounds(ranks)):
        forth = algorithm.reduce_scatter(ranks, algorithm.rounds(ranks) - 1 - index)
        back = algorithm.all_gather(ranks, index)
        assert forth.add and not back.add
        for position in range(ranks):
            assert back.receives(position) == forth.sends(position)


@given(st.lists(st.integers(0, 5), max_size=30))
def test_waves_keep_the_order_of_every_room(rooms):
    found = waves(np.array(rooms, dtype=np.int64))
    assert sorted(place for wave in found for place in wave) == list(range(len(rooms)))
    for room in set(rooms):
        arrivals = [place for wave in found for place in wave if rooms[place] == room]
        assert arrivals == [place for place, each in enumerate(rooms) if each == room]
    for wave in found:
        assert len({rooms[place] for place in wave}) == len(wave)
