"""The controller, over real processes that cost next to nothing (toy.py): nothing lost, nothing twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gradwire.trainer.sweep.best import write_best
from gradwire.trainer.sweep.schedule import lines
from gradwire.trainer.sweep.standing import to_json
from tests.trainer.sweep import toy

TPE = {"_target_": "gradwire.trainer.sweep.samplers.Tpe", "startup": 2}
RANDOM = {"_target_": "gradwire.trainer.sweep.samplers.Random"}
GRID = {"_target_": "gradwire.trainer.sweep.samplers.Grid"}
MEDIAN = {"_target_": "gradwire.trainer.sweep.pruners.Median", "startup": 2}


def start(directory: Path, *space: str, **changes: Any) -> "subprocess.Popen[bytes]":
    """A controller in a process of its own."""
    command = [sys.executable, toy.__file__, str(directory), json.dumps(changes), *space]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def ran(sweep: toy.Definition) -> list[list[str]]:
    """The updates that each trial's run took, in order; what was done twice is there twice."""
    return [(sweep.trial(n).folder / "ran").read_text().split() for n in range(len(toy.results(sweep)))]


HYPERBAND = {"_target_": "gradwire.trainer.sweep.pruners.Hyperband", "factor": 2, "rungs": 2, "brackets": 1}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> toy.Definition:
    """Six trials by TPE with pruning."""
    sweep = toy.definition(tmp_path_factory.mktemp("undisturbed"), trials=6, sampler=TPE, pruner=MEDIAN)
    assert toy.control(sweep) == 0
    return sweep


def test_a_sweep_has_each_number_once_and_ends_trials_that_are_behind(undisturbed: toy.Definition) -> None:
    found = toy.results(undisturbed)
    assert [number for number, *_ in found] == list(range(6))
    assert {state for _, state, *_ in found} == {"COMPLETE", "PRUNED"}
    for _, state, parameters, values, evaluations, update in found:
        expected = (parameters["x"] - 0.3) ** 2 + 1 / update
        assert values == [pytest.approx(expected)] and max(evaluations) == update - 1
        assert (state == "PRUNED") == (update < toy.UPDATES)


def test_a_killed_controller_and_killed_trials_change_nothing(undisturbed: toy.Definition, tmp_path: Path) -> None:
    sweep = disturbed(tmp_path / "killed", 15, trials=6, sampler=TPE, pruner=MEDIAN)
    assert toy.results(sweep) == toy.results(undisturbed)
    assert all(updates == sorted(set(updates), key=int) for updates in ran(sweep))


def disturbed(directory: Path, most: int, *space: str, controllers: int = 1, **changes: Any) -> toy.Definition:
    """A sweep of which a controller or a trial is killed after at most so many updates, again and again."""
    moments, kills, done = random.Random(7), 0, 0
    sweep = toy.definition(directory, *space, **changes)
    at_work = [start(directory, *space, **changes) for _ in range(controllers)]
    while True:
        until = done + moments.randint(2, most)
        while all(each.poll() is None for each in at_work) and (done := _updates(sweep.directory)) < until:
            time.sleep(0.005)
        if any(each.poll() is not None for each in at_work):
            break
        kills += 1
        victim = moments.randrange(controllers)
        trials = _trials_of(at_work[victim].pid)
        if kills % 2 and trials:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(trials[0], signal.SIGKILL)
        if kills % 3 or not trials:
            at_work[victim].kill()
            at_work[victim].wait()
            at_work[victim] = start(directory, *space, **changes)
    told = [each.communicate(timeout=300)[1].decode() for each in at_work]
    assert [each.returncode for each in at_work] == [0] * controllers, told
    assert kills > 1
    return sweep


def test_trials_that_are_promoted_go_on_from_where_they_waited(tmp_path: Path) -> None:
    told = {"trials": 4, "sampler": RANDOM, "pruner": HYPERBAND}
    sweep = toy.definition(tmp_path / "sweep", **told, parallel=2)
    assert toy.control(sweep) == 0
    found = toy.results(sweep)
    ranked = [number for _, number in sorted((abs(x["x"] - 0.3), number) for number, _, x, *_ in found)]
    reached = {number: update for number, *_, update in found}
    assert [reached[number] for number in ranked] == [10, 5, 2, 2]
    assert [found[number][1] for number in ranked] == ["COMPLETE", "PRUNED", "PRUNED", "PRUNED"]
    assert ran(sweep) == [[str(update) for update in range(1, reached[number] + 1)] for number in range(4)]
    assert [len(sweep.trial(number).launches()) for number in ranked] == [6, 4, 2, 2]

    killed = disturbed(tmp_path / "killed", 12, "x=interval(0,1)", controllers=2, **told)
    assert toy.results(killed) == found
    assert all(updates == sorted(set(updates), key=int) for updates in ran(killed))


def _updates(sweep: Path) -> int:
    return sum(len(path.read_text().split()) for path in sweep.glob("trials/*/ran"))


def _trials_of(controller: int) -> list[int]:
    found = []
    for pid in Path(f"/proc/{controller}/task/{controller}/children").read_text().split():
        with suppress(OSError):  # it ends meanwhile
            if b"--trial" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def test_a_trial_that_is_killed_goes_on_at_once(tmp_path: Path) -> None:
    sweep = toy.definition(tmp_path / "sweep", "x=0.25,0.5", "+hold=choice(3)", trials=2, sampler=GRID)
    controller = start(sweep.directory, "x=0.25,0.5", "+hold=choice(3)", trials=2, sampler=GRID)
    while not (sweep.trial(0).folder / toy.HELD).exists():
        time.sleep(0.02)
    os.kill(_trials_of(controller.pid)[0], signal.SIGKILL)
    assert controller.wait(timeout=300) == 0
    assert [state for _, state, *_ in toy.results(sweep)] == ["COMPLETE", "COMPLETE"]
    assert [record.get("code") for record in sweep.trial(0).launches()] == [None, -9, None, 0]


def test_a_signal_saves_and_a_later_controller_goes_on(tmp_path: Path) -> None:
    told = {"trials": 2, "sampler": GRID}
    sweep = toy.definition(tmp_path / "sweep", "x=0.25,0.5", "+hold=choice(1)", **told)
    controller = start(sweep.directory, "x=0.25,0.5", "+hold=choice(1)", **told)
    while not (sweep.trial(0).folder / toy.HELD).exists():
        time.sleep(0.02)
    controller.terminate()
    assert controller.wait(timeout=300) == 75
    assert json.loads((sweep.trial(0).folder / "status.json").read_text())["status"] == "preempted"
    assert toy.ledger_of(sweep).finished() == []
    assert toy.control(sweep) == 0
    assert ran(sweep) == [[str(update) for update in range(1, 11)]] * 2


def test_members_go_on_from_their_parents_whatever_is_killed(tmp_path: Path) -> None:
    pbt = {"_target_": "gradwire.trainer.sweep.population.Pbt", "population": 3, "generations": 2}
    sweep = toy.definition(tmp_path / "sweep", sampler=pbt, trials=None, parallel=3)
    assert toy.control(sweep) == 0
    found = toy.results(sweep)
    assert [update for *_, update in found] == [5] * 3 + [10] * 3
    assert ran(sweep) == [["1", "2", "3", "4", "5"]] * 3 + [["6", "7", "8", "9", "10"]] * 3
    ledger = toy.ledger_of(sweep)
    told, (best,) = json.loads(to_json(sweep, ledger)), ledger.best()
    assert [part["until"] for part in told["schedule"]] == [0.5, 1.0] and told["best"] == [best.number]
    assert told["schedule"][1]["trial"] == best.number and told["schedule"][1]["parameters"] == best.params
    assert told["schedule"][0]["trial"] == told["trials"][best.number]["parent"]
    first, second, model = lines(sweep, ledger)
    assert first.startswith("schedule  to 50%") and f"x={best.params['x']}" in second and "gradwire evaluate" in model
    assert write_best(sweep, ledger) == []  # no single configuration trains what came of it

    killed = disturbed(tmp_path / "killed", 12, "x=interval(0,1)", controllers=2, sampler=pbt, trials=None)
    assert toy.results(killed) == found and ran(killed) == ran(sweep)


def test_two_controllers_share_a_sweep_without_a_duplicate(tmp_path: Path) -> None:
    told = {"trials": 8, "sampler": RANDOM}
    alone = toy.definition(tmp_path / "alone", **told, parallel=2)
    assert toy.control(alone) == 0
    shared = toy.definition(tmp_path / "shared", **told)
    controllers = [start(shared.directory, **told) for _ in range(2)]
    assert [each.wait(timeout=300) for each in controllers] == [0, 0]
    assert toy.results(shared) == toy.results(alone)
    assert ran(shared) == [[str(update) for update in range(1, 11)]] * 8
    assert [len(shared.trial(number).launches()) for number in range(8)] == [2] * 8


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("crash", "out of memory, say"),
        ("nan", "the objective is NaN"),
        ("mute", "never reported eval/loss, which sweep.objective names; its runs report nothing"),
    ],
)
def test_a_failing_trial_is_a_result(tmp_path: Path, behaviour: str, reason: str) -> None:
    sweep = toy.definition(tmp_path / "sweep", f"+do=train,{behaviour}", "x=0.5,0.6", trials=4, sampler=GRID)
    assert toy.control(sweep) == 0
    found = toy.ledger_of(sweep).trials()
    assert [trial.state.name for trial in found] == ["COMPLETE", "COMPLETE", "FAIL", "FAIL"]
    assert found[2].user_attrs["reason"] == reason and found[0].user_attrs["reason"] == ""


def test_more_failures_than_allowed_end_the_sweep_clearly(tmp_path: Path) -> None:
    space = ("+do=choice(crash)", "x=range(1,9)")
    controller = start(tmp_path / "sweep", *space, trials=8, sampler=GRID, failures=1)
    _, told = controller.communicate(timeout=300)
    assert controller.returncode == 1
    assert "2 trials failed and sweep.failures=1" in told.decode() and "out of memory, say" in told.decode()
    assert "sweep.failures=4" in told.decode()
    sweep = toy.definition(tmp_path / "sweep", *space, trials=8, sampler=GRID)
    assert [trial.number for trial in toy.ledger_of(sweep).trials()] == [0, 1]


def test_a_trial_is_the_mean_of_its_seeds(tmp_path: Path) -> None:
    sweep = toy.definition(tmp_path / "sweep", "x=0.5,0.6", trials=1, sampler=GRID, seeds=2)
    assert toy.control(sweep) == 0
    (trial,) = toy.ledger_of(sweep).trials()
    assert trial.value == pytest.approx((0.2**2 + 0.201**2) / 2 + 0.1)
    assert sorted(each.name for each in sweep.trial(0).folder.glob("seed-*")) == ["seed-0", "seed-1"]


def test_several_objectives_and_constraints(tmp_path: Path) -> None:
    objectives = [{"metric": "eval/loss"}, {"metric": "memory", "direction": "maximize"}]
    sweep = toy.definition(
        tmp_path / "sweep",
        "x=0.2,0.3,0.6,0.9",
        trials=4,
        sampler=GRID,
        objective=objectives,
        constraints=[{"metric": "memory", "at_most": 0.8}],
    )
    assert toy.control(sweep) == 0
    ledger = toy.ledger_of(sweep)
    assert [trial.number for trial in ledger.best()] == [1, 2]  # 0 is worse in both, 3 is beyond the limit
    assert [trial.constraints["memory"] for trial in ledger.trials()] == pytest.approx([-0.6, -0.5, -0.2, 0.1])


def test_a_run_that_somebody_else_has_is_waited_for(tmp_path: Path) -> None:
    sweep = toy.definition(tmp_path / "sweep", "x=0.5,0.6", "+pace=choice(0.1)", trials=1, sampler=GRID)
    folder = sweep.trial(0).folder
    folder.mkdir(parents=True)
    elsewhere = [sys.executable, toy.__file__, "--trial", "x=0.5", "pace=0.1", f"run.dir={folder}"]
    process = subprocess.Popen(elsewhere)
    while not (folder / "ran").exists():
        time.sleep(0.02)
    assert toy.control(sweep) == 0 and process.wait() == 0
    assert ran(sweep) == [[str(update) for update in range(1, 11)]]
