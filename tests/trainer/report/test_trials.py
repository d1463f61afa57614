"""Charts of a sweep."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.trainer.report import Objective, Trial, save_pictures, sweep_charts, sweep_document, write
from gradwire.trainer.report.errors import TrialsError
from gradwire.trainer.report.trials import pareto_front
from tests.trainer.report.conftest import Show

LOSS, SPEED = Objective("eval/loss"), Objective("tokens_per_second", minimize=False)


def trials(count: int = 24) -> list[Trial]:
    chance = random.Random(0)
    made = []
    for number in range(count):
        params = {"lr": 10 ** chance.uniform(-5, -1), "layers": chance.randint(1, 8), "norm": chance.random() < 0.5}
        done = number % 6 != 5
        values = (chance.random(), 1000 * chance.random()) if done else ()
        made.append(Trial(number, params, values, "complete" if done else "failed"))
    return made


def chart(charts: list[dict], key: str) -> dict:  # type: ignore[type-arg]
    return next(each for each in charts if each["key"] == key)


def test_the_history_shows_every_value_and_the_best_so_far() -> None:
    given = [Trial(0, {}, (3.0,), "complete"), Trial(1, {}, (1.0,), "pruned"), Trial(2, {}, (2.0,), "complete")]
    groups = {
        group["name"]: group["points"] for group in chart(sweep_charts(given, [LOSS]), "history-eval/loss")["groups"]
    }
    assert groups["pruned"] == [[1, 1.0, "trial 1"]]
    assert [point[:2] for point in groups["best so far"]] == [[0, 3.0], [2, 2.0]]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20))
def test_nothing_beats_the_front_and_the_front_beats_the_rest(values: list[tuple[int, int]]) -> None:
    given = [Trial(number, {}, value, "complete") for number, value in enumerate(values)]
    front = {trial.number for trial in pareto_front(given, ((0, LOSS), (1, SPEED)))}

    def beats(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
        return a != b and a[0] <= b[0] and a[1] >= b[1]

    for trial in given:
        assert (trial.number in front) != any(beats(other.values, trial.values) for other in given)


def test_wide_ranges_are_logarithmic_and_words_are_categories() -> None:
    axes = {axis["name"]: axis for axis in chart(sweep_charts(trials(), [LOSS, SPEED]), "parallel")["axes"]}
    assert (axes["lr"]["type"], axes["layers"]["type"], axes["norm"]["categories"]) == (
        "log",
        "value",
        ["False", "True"],
    )


def test_trials_that_contradict_the_objectives_are_refused() -> None:
    with pytest.raises(TrialsError, match="trial 3 is complete with 1 values, expected one for each of 2 objectives"):
        sweep_charts([Trial(3, {}, (1.0,), "complete")], [LOSS, SPEED])
    with pytest.raises(TrialsError, match="needs an objective"):
        sweep_charts([], [])


def test_a_sweep_without_a_complete_trial_is_drawn() -> None:
    assert [each["kind"] for each in sweep_charts([Trial(0, {"lr": 1}, (), "running")], [LOSS])] == ["points"]


def test_the_page_and_the_pictures_show_all_charts(show: Show, tmp_path: Path) -> None:
    document = sweep_document("A sweep", trials(), [LOSS, SPEED], {"lr": 0.7, "layers": 0.2, "norm": 0.1})
    write(document, tmp_path / "sweep.html")
    shown = show(tmp_path / "sweep.html")
    keys = {figure.get_attribute("id") for figure in shown.page.locator("figure").all()}
    expected = [
        "history-eval-loss",
        "front-eval-loss-tokens_per_second",
        "parallel",
        "importance",
        "slice-lr-eval-loss",
    ]
    assert {f"chart-{key}" for key in expected} <= keys
    assert shown.errors == [] and len(shown.requests) == 1
    assert len(save_pictures(document, tmp_path)) == len(document["charts"])
