import math

import numpy as np
import pytest

from gradwire.comm.algorithms import HalvingDoubling, Ring, Tree, TwoShot

ALGORITHMS = [Ring(), Ring(bidirectional=True), TwoShot(), HalvingDoubling()]
SIZES = [*range(1, 18), 64, 100]


@pytest.mark.parametrize("ranks", SIZES)
def test_rounds_are_as_many_as_the_formulas_say(ranks):
    logarithm = math.ceil(math.log2(ranks))
    assert Ring().rounds(ranks) == Ring(bidirectional=True).rounds(ranks) == ranks - 1
    assert TwoShot().rounds(ranks) == min(1, ranks - 1)
    assert HalvingDoubling().rounds(ranks) == Tree().rounds(ranks) == logarithm


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("ranks", SIZES)
def test_every_position_sends_and_receives_all_chunks_but_its_own(algorithm, ranks):
    rounds = [algorithm.reduce_scatter(ranks, index) for index in range(algorithm.rounds(ranks))]
    for side in ("sources", "targets"):
        moved = sum((np.bincount(getattr(turn, side), turn.counts, ranks) for turn in rounds), np.zeros(ranks))
        assert (moved == (ranks - 1) * algorithm.pieces).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("ranks", SIZES)
def test_the_pattern_is_what_every_position_sends(algorithm, ranks):
    for index in range(algorithm.rounds(ranks)):
        turn = algorithm.reduce_scatter(ranks, index)
        for position in range(ranks):
            sent = [((target - position) % ranks, count) for target, _, count in turn.sends(position)]
            assert sorted(sent) == sorted(algorithm.pattern(ranks, index))


def test_a_ring_talks_to_its_neighbors_only():
    assert Ring().reduce_scatter(5, 2).sends(4) == [(0, 1, 1)]
    assert Ring(bidirectional=True).reduce_scatter(5, 0).sends(0) == [(1, 8, 1), (4, 3, 1)]


def test_halving_sends_half_then_a_quarter():
    assert [HalvingDoubling().pattern(8, index) for index in range(3)] == [((4, 4),), ((2, 2),), ((1, 1),)]
    assert [HalvingDoubling().pattern(5, index) for index in range(3)] == [((3, 2),), ((2, 1),), ((1, 1),)]


def test_owners_of_the_two_shot_receive_in_the_order_of_positions():
    assert [source for source, _, _ in TwoShot().reduce_scatter(5, 0).receives(2)] == [0, 1, 3, 4]


@pytest.mark.parametrize("ranks", SIZES)
def test_scatter_and_gather_move_every_chunk_at_most_once_a_level(ranks):
    tree, root = Tree(), ranks // 2
    scattered = [tree.scatter(ranks, root, index) for index in range(tree.rounds(ranks))]
    assert sum(turn.counts[turn.sources == root].sum() for turn in scattered) == ranks - 1
    assert sum(len(turn.sources) for turn in scattered) == ranks - 1
    gathered = [tree.gather(ranks, root, index) for index in range(tree.rounds(ranks))]
    assert [turn.sources.tolist() for turn in gathered[::-1]] == [turn.targets.tolist() for turn in scattered]
