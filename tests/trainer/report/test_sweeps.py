"""A sweep's folder as a report."""

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmarks.report_runs import records, write_run
from gradwire.trainer.report.sweeps import charts_of_sweep
from tests.trainer.commands import gradwire
from tests.trainer.sweep import toy

DOMAINS = {"x": FloatDistribution(0, 1), "do": CategoricalDistribution(["train", "crash"])}


def trial(x: float, value: float | None = None, state: TrialState = TrialState.COMPLETE, **more: Any) -> FrozenTrial:
    params = {"x": x, "do": "train"}
    return create_trial(params=params, distributions=DOMAINS, value=value, state=state, **more)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Five complete trials, one of them beyond a limit; one pruned, one failed, one that only has a number."""
    found = toy.definition(
        tmp_path, "+do=train,crash", "x=0.5,0.4,0.8", constraints=[{"metric": "memory", "at_most": 1}]
    )
    found.write()
    ledger = toy.ledger_of(found)
    complete = [trial(x, (x - 0.3) ** 2) for x in (0.5, 0.9, 0.4, 0.7)]
    beyond = trial(0.31, 0.0001, system_attrs={"constraints:memory": 0.5})
    pruned = trial(0.8, state=TrialState.PRUNED, intermediate_values={1: 0.5, 2: 0.45})
    for each in (*complete, beyond, pruned, trial(0.6, state=TrialState.FAIL)):
        ledger.study.add_trial(each)
    ledger.create()
    return found.directory


def test_every_state_is_told_apart_and_limits_count(sweep: Path) -> None:
    history, *others = charts_of_sweep(sweep)
    points = {group["name"]: [point[:2] for point in group["points"]] for group in history["groups"]}
    assert points["infeasible"] == [[4, 0.0001]] and points["pruned"] == [[5, 0.45]]
    assert points["best so far"][-1] == [3, pytest.approx(0.01)]
    importance = next(each for each in others if each["key"] == "importance")
    assert importance["categories"][0] == "x"
    assert {each["kind"] for each in others} == {"parallel", "bars", "points"}


def test_a_population_has_its_schedule_drawn(tmp_path: Path) -> None:
    pbt = {"_target_": "gradwire.trainer.sweep.population.Pbt", "population": 2, "generations": 2}
    found = toy.definition(tmp_path, "x=interval(0,1)", "+do=train,crash", sampler=pbt, trials=None)
    found.write()
    ledger = toy.ledger_of(found)
    lines = [{"age": 0}, {"age": 0}, {"age": 1, "parent": 1}, {"age": 1, "parent": 1}]
    for x, attributes in zip((0.5, 0.4, 0.6, 0.3), lines, strict=True):
        ledger.study.add_trial(trial(x, x, user_attrs=attributes))
    charts = {each["key"]: each for each in charts_of_sweep(tmp_path)}
    members, best = charts["schedule-x"]["groups"]
    assert [point[:2] for point in members["points"]] == [[0.0, 0.5], [0.0, 0.4], [0.5, 0.6], [0.5, 0.3]]
    assert best["line"] and best["points"] == [[0.0, 0.4, "trial 1"], [0.5, 0.3, "trial 3"], [1.0, 0.3, "trial 3"]]
    assert charts["schedule-do"]["y"]["type"] == "category"


def test_the_command_takes_a_sweep_alone_and_beside_runs(sweep: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", list(records(5)))
    for given in ([sweep], [sweep, run]):
        done = gradwire("report", *map(str, given), "-o", str(tmp_path / "x.html"))
        assert done.returncode == 0, done.stderr
        text = (tmp_path / "x.html").read_text()
        assert "History of eval/loss" in text and ('"name":"a run"' in text) == (run in given)


def test_two_sweeps_and_following_a_sweep_are_refused(sweep: Path) -> None:
    assert "one sweep, found 2" in gradwire("report", str(sweep), str(sweep), "-o", "x.html").stderr
    assert "leave --watch out" in gradwire("report", str(sweep), "--watch").stderr
