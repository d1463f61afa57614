"""Pruners: who is behind, by hand-made studies."""

import math

import pytest

from gradwire.trainer.sweep.pruners import Median, Patience, Percentile, Pruner, SuccessiveHalving


def verdict(pruner: Pruner, others: list[list[float]], mine: list[float], direction: str = "minimize") -> bool:
    import optuna

    study = optuna.create_study(direction=direction)
    for values in others:
        steps = dict(enumerate(values))
        study.add_trial(optuna.trial.create_trial(value=values[-1], intermediate_values=steps))
    state = optuna.trial.TrialState.RUNNING
    study.add_trial(optuna.trial.create_trial(state=state, intermediate_values=dict(enumerate(mine))))
    return pruner.behind(study, study.trials[-1])


FOUR = [[9.0, 1.0], [9.0, 2.0], [9.0, 3.0], [9.0, 4.0]]


@pytest.mark.parametrize(
    ("pruner", "mine", "behind"),
    [
        (Median(startup=4), [9.0, 2.4], False),
        (Median(startup=4), [9.0, 2.6], True),
        (Median(startup=5), [9.0, 2.6], False),
        (Median(startup=4, warmup=2), [9.0, 2.6], False),
        (Percentile(keep=25, startup=4), [9.0, 1.6], False),
        (Percentile(keep=25, startup=4), [9.0, 1.9], True),
        (SuccessiveHalving(first=1, factor=2), [9.0, 1.5], False),
        (SuccessiveHalving(first=1, factor=2), [9.0, 2.5], True),
        (SuccessiveHalving(first=1, factor=5), [9.0, 1.5], True),
        (SuccessiveHalving(first=2, factor=2), [9.0, 2.5], False),
        (SuccessiveHalving(first=1, factor=2), [9.0, math.nan], True),
        (Patience(evaluations=2), [3.0, 2.0, 2.5], False),
        (Patience(evaluations=2), [3.0, 2.0, 2.5, 2.0], True),
        (Patience(evaluations=2, least=0.5), [3.0, 2.8, 2.6], True),
        (Patience(evaluations=2, least=0.3), [3.0, 2.8, 2.6], False),
    ],
)
def test_who_is_behind(pruner: Pruner, mine: list[float], behind: bool) -> None:
    assert verdict(pruner, FOUR, mine) is behind
    mirrored = [[-value for value in values] for values in FOUR]
    assert verdict(pruner, mirrored, [-value for value in mine], "maximize") is behind


def test_the_first_at_a_rung_passes_and_rungs_grow_by_the_factor() -> None:
    halving = SuccessiveHalving(first=1, factor=3)
    assert not verdict(halving, [], [9.0, 5.0])
    others = [[9.0] * 10, [1.0] * 10]
    assert [verdict(halving, others, [5.0] * (rung + 1)) for rung in range(1, 10)] == [
        True, False, True, False, False, False, False, False, True,
    ]  # fmt: skip
