from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.comm.algorithms import HalvingDoubling, Ring, Tree, TwoShot
from gradwire.comm.checker import check, check_line, check_tree
from gradwire.comm.errors import ProgramError
from gradwire.comm.program import Phase, phases, rotations
from gradwire.comm.rounds import Algorithm, Round
from gradwire.comm.topology import Topology

ALGORITHMS = [Ring(), Ring(bidirectional=True), TwoShot(), HalvingDoubling()]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("ranks", [*range(1, 18), 64])
def test_every_algorithm_is_proven(algorithm, ranks):
    check_line(algorithm, ranks)


def test_halving_doubling_is_proven_at_256():
    check_line(HalvingDoubling(), 256)


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "scatter", "gather"])
@pytest.mark.parametrize("ranks", [*range(1, 18), 256])
def test_every_tree_is_proven(kind, ranks):
    for root in {0, ranks // 3, ranks - 1}:
        check_tree(kind, Tree(), ranks, root)


def test_programs_over_axes_in_every_rotation_are_proven():
    topology = Topology(x=3, y=1, z=4, w=2)
    for algorithm in ALGORITHMS:
        programs = rotations(topology, algorithm)
        assert [[phase.axis for phase in program] for program in programs] == [
            list("xzwwzx"),
            list("zwxxwz"),
            list("wxzzxw"),
        ]
        for program in programs:
            check(topology, program)


@dataclass(frozen=True)
class Broken(Algorithm):
    """A ring whose reduce-scatter round `at` has changed."""

    name = "broken"
    at: int
    change: Any

    def rounds(self, ranks: int) -> int:
        return ranks - 1

    def reduce_scatter(self, ranks: int, index: int) -> Round:
        turn = Ring().reduce_scatter(ranks, index)
        return self.change(turn) if index == self.at else turn

    def all_gather(self, ranks: int, index: int) -> Round:
        return Ring().all_gather(ranks, index)


def _columns(turn, choose):
    return Round(*(choose(column) for column in (turn.sources, turn.targets, turn.starts, turn.counts)), turn.add)


def _first(column, value):
    return np.array([value, *column[1:]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda turn: _columns(turn, lambda column: column[1:]),
            r"after the reduce_scatter chunk 2 at rank 2 has the parts of \[1, 2\] of 4",
        ),
        (
            lambda turn: _columns(turn, lambda column: np.repeat(column, 2)),
            "round 1 .* adds at rank 1 to chunk 2 what is",
        ),
        (lambda turn: replace(turn, targets=_first(turn.targets, 0)), "round 1 .* sends from rank 0 chunk 2 to itself"),
        (lambda turn: replace(turn, targets=_first(turn.targets, 4)), "round 1 .* has a target of 4; expected 0 to 3"),
        (lambda turn: replace(turn, starts=_first(turn.starts, 9)), "round 1 .* first chunk of 9; expected 0 to 3"),
        (lambda turn: replace(turn, counts=_first(turn.counts, 0)), "round 1 .* count less one of -1"),
        (lambda turn: replace(turn, starts=_first(turn.starts, 3)), "receives at rank 1 chunk 3 while it sends it"),
        (lambda turn: replace(turn, add=False), "round 1 .* overwrites at rank 1 in chunk 2"),
    ],
)
def test_a_broken_round_is_named(change, message):
    with pytest.raises(ProgramError, match=message):
        check_line(Broken(1, change), 4)


class Eager(Ring):
    """Gathers in the order of the reduce-scatter."""

    def all_gather(self, ranks: int, index: int) -> Round:
        return self.reduce_scatter(ranks, index).backwards()


def test_nothing_is_sent_before_it_is_held():
    with pytest.raises(ProgramError, match="round 0 of the all_gather sends from rank 1 chunk 3, which it does"):
        check_line(Eager(), 4)


@settings(max_examples=60)
@given(st.data())
def test_no_transfer_can_be_missing(data):
    ranks = data.draw(st.integers(2, 9))
    at = data.draw(st.integers(0, ranks - 2))
    lost = data.draw(st.integers(0, ranks - 1))
    with pytest.raises(ProgramError, match=r"round|after"):
        check_line(Broken(at, lambda turn: _columns(turn, lambda column: np.delete(column, lost))), ranks)


def _phase(axis, kind):
    return Phase(axis, kind, Ring())


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ([], "does not reduce along x, y"),
        ([_phase("x", "reduce_scatter"), _phase("x", "all_gather")], "does not reduce along y"),
        ([_phase("x", "reduce_scatter"), _phase("y", "reduce_scatter"), _phase("y", "all_gather")], "gather along x"),
        ([_phase("x", "reduce_scatter")] * 2, "phase 1 reduces along x again"),
        ([_phase("q", "reduce_scatter")], "phase 0 goes along axis 'q', which x=2 × y=2 does not have"),
        (
            [_phase("x", "reduce_scatter"), _phase("y", "reduce_scatter"), _phase("x", "all_gather")],
            "phase 2 gathers along x, but that was not the last axis scattered",
        ),
    ],
)
def test_a_program_that_takes_axes_wrongly_is_named(program, message):
    with pytest.raises(ProgramError, match=message):
        check(Topology(x=2, y=2), program)


def test_gathering_by_another_algorithm_than_scattering_is_refused():
    program = [*phases(Topology(x=4), Ring())[:1], *phases(Topology(x=4), HalvingDoubling())[1:]]
    with pytest.raises(ProgramError, match="not the last axis scattered"):
        check(Topology(x=4), program)
