"""Brackets of successive halving: who goes on, whatever the order in which trials arrive."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.trainer.sweep.ladder import Climb, Ladder

HYPERBAND = Ladder.hyperband(factor=3, rungs=3, brackets=None)


def climbed(ladder: Ladder, losses: Sequence[float], order: random.Random) -> list[Climb]:
    """A sweep in which whichever trial comes next gets on by one rung; a trial has the same loss at all rungs."""
    climbs: list[Climb] = []
    while True:
        verdicts = ladder.verdicts(climbs, len(losses), minimize=True)
        for number in (number for number, promoted in verdicts.items() if not promoted):
            climbs[number] = Climb(number, climbs[number].values, "pruned")
        able = [each.number for each in climbs if each.state == "open" and (not each.values or each.number in verdicts)]
        able += [len(climbs)] if len(climbs) < len(losses) else []
        if not able:
            return climbs
        number = order.choice(able)
        climb = climbs[number] if number < len(climbs) else Climb(number, ())
        top = len(climb.values) == len(ladder.rungs(number))
        after = Climb(number, climb.values if top else (*climb.values, losses[number]), "over" if top else "open")
        climbs[number:] = [after, *climbs[number + 1 :]]


def test_brackets_go_from_many_short_trials_to_few_long_ones() -> None:
    assert HYPERBAND.trials == 27 + 12 + 6 + 4
    assert HYPERBAND.rungs(26) == pytest.approx((1 / 27, 1 / 9, 1 / 3))
    assert HYPERBAND.rungs(27) == HYPERBAND.rungs(38) == pytest.approx((1 / 9, 1 / 3))
    assert HYPERBAND.rungs(44) == pytest.approx((1 / 3,)) and HYPERBAND.rungs(48) == ()
    assert HYPERBAND.rungs(49) == HYPERBAND.rungs(0)
    assert Ladder.hyperband(factor=9, rungs=30, brackets=1).trials > 10**28
    assert Ladder.hyperband(factor=4, rungs=2, brackets=1).rungs(16) == (1 / 16, 1 / 4)


def test_one_in_so_many_goes_on_and_the_whole_takes_a_quarter_of_the_grids_updates() -> None:
    losses = [random.Random(number).random() for number in range(49)]
    climbs = climbed(HYPERBAND, losses, random.Random(0))
    first = climbs[:27]
    assert [sum(len(each.values) > rung for each in first) for rung in range(3)] == [27, 9, 3]
    assert [each.number for each in first if each.state == "over"] == [losses.index(min(losses[:27]))]
    shares = [1.0 if each.state == "over" else HYPERBAND.rungs(each.number)[len(each.values) - 1] for each in climbs]
    assert sum(shares) / 49 == pytest.approx(0.27, abs=0.005)


@given(st.integers(2, 4), st.integers(1, 3), st.lists(st.floats(-9, 9), min_size=1, max_size=60), st.randoms())
def test_who_goes_on_does_not_depend_on_the_order(
    factor: int, rungs: int, losses: list[float], order: random.Random
) -> None:
    ladder = Ladder.hyperband(factor, rungs, None)
    assert climbed(ladder, losses, order) == climbed(ladder, losses, random.Random(1))


@pytest.mark.parametrize(
    ("climbs", "minimize", "verdicts"),
    [
        ([Climb(0, (3.0,)), Climb(1, (2.0,)), Climb(2, ())], True, {}),
        ([Climb(0, (3.0,)), Climb(1, (2.0,)), Climb(2, (4.0,))], True, {0: False, 1: True, 2: False}),
        ([Climb(0, (3.0,)), Climb(1, (2.0,)), Climb(2, (4.0,))], False, {0: False, 1: False, 2: True}),
        ([Climb(0, (2.0,)), Climb(1, (2.0,)), Climb(2, (), "over")], True, {0: True, 1: False}),  # 2 has failed
        ([Climb(0, (3.0,), "pruned"), Climb(1, (2.0,), "over"), Climb(2, (1.5,))], True, {2: True}),
        ([Climb(0, (1.0,), "over"), Climb(1, (2.0,)), Climb(2, (3.0,), "pruned")], True, {1: False}),
    ],
)
def test_a_rung_is_judged_once_all_are_there(climbs: list[Climb], minimize: bool, verdicts: dict[int, bool]) -> None:
    assert Ladder.hyperband(3, 1, 1).verdicts(climbs, 3, minimize=minimize) == verdicts


def test_the_last_bracket_of_a_sweep_that_ends_early_is_judged_too() -> None:
    climbs = [Climb(0, (3.0,)), Climb(1, (2.0,))]
    assert Ladder.hyperband(3, 1, 1).verdicts(climbs, 2, minimize=True) == {0: False, 1: True}
    assert Ladder.hyperband(3, 1, 1).verdicts(climbs, 3, minimize=True) == {}
