"""Sweeps whose folder was damaged, emptied, moved or filled: one clear error, or the sweep goes on as if it was not."""

import json
import os
import shutil
import threading
from pathlib import Path
from signal import Signals
from typing import Any

import pytest

from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.signals import ControllerSignals
from gradwire.trainer.sweep import files
from gradwire.trainer.sweep.best import write_best
from gradwire.trainer.sweep.controller import Controller
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.errors import DamagedSweepError, SweepError, TooManyFailuresError, UnwritableError
from gradwire.trainer.sweep.objectives import history, metrics_of
from gradwire.trainer.sweep.standing import to_json
from gradwire.trainer.sweep.storage import JOURNAL
from gradwire.trainer.sweep.trial import LAUNCHES, VALUES
from tests.trainer.sweep import toy

GRID = {"_target_": "gradwire.trainer.sweep.samplers.Grid"}
HYPERBAND = {"_target_": "gradwire.trainer.sweep.pruners.Hyperband", "factor": 2, "rungs": 1, "brackets": 1}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> toy.Definition:
    """Two trials, complete."""
    sweep = toy.definition(tmp_path_factory.mktemp("done"), "x=0.5,0.25", "+pace=choice(0)", trials=2, sampler=GRID)
    assert toy.control(sweep) == 0
    return sweep


@pytest.fixture
def sweep(done: toy.Definition, tmp_path: Path) -> toy.Definition:
    """The same in a folder of its own: moved, so to speak."""
    shutil.copytree(done.directory, tmp_path / "moved")
    return toy.definition(tmp_path / "moved", "x=0.5,0.25", "+pace=choice(0)", trials=2, sampler=GRID)


def journal(sweep: Definition) -> Path:
    return sweep.directory / JOURNAL


def test_a_sweep_that_was_moved_goes_on_where_it_is(sweep: toy.Definition, done: toy.Definition) -> None:
    assert toy.control(sweep) == 0 and toy.results(sweep) == toy.results(done)
    assert str(sweep.directory) in to_json(sweep, toy.ledger_of(sweep))


def test_a_ledger_that_lost_its_end_takes_the_results_from_the_folders(sweep: toy.Definition) -> None:
    before, lines = toy.results(sweep), journal(sweep).read_bytes().splitlines(keepends=True)
    for kept in (len(lines) - 3, len(lines) // 2, 3, 0):
        journal(sweep).write_bytes(b"".join(lines[:kept]) + b'{"op_co')
        assert toy.control(sweep) == 0 and toy.results(sweep) == before
    assert [len(sweep.trial(number).launches()) for number in range(2)] == [2, 2]


def test_a_result_is_not_taken_for_other_values(sweep: toy.Definition) -> None:
    journal(sweep).unlink()
    other = toy.definition(sweep.directory, "x=0.25,0.5", "+pace=choice(0)", trials=2, sampler=GRID)
    with pytest.raises(DamagedSweepError, match=r"trials/0/trial\.json has other values than the ledger"):
        toy.control(other)
    shutil.rmtree(sweep.trial(0).folder)
    shutil.rmtree(sweep.trial(1).folder)
    assert toy.control(other) == 0 and [x["x"] for _, _, x, *_ in toy.results(other)] == [0.25, 0.5]


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b"{}\n", b'{"op_code":99}\n', b"\xff\xfe\n", b"\0\0\0\n"])
def test_a_line_of_the_ledger_that_cannot_be_read_is_damage(sweep: toy.Definition, line: bytes) -> None:
    lines = journal(sweep).read_bytes().splitlines(keepends=True)
    journal(sweep).write_bytes(b"".join([*lines[:4], line, *lines[4:]]))
    with pytest.raises(DamagedSweepError, match="is damaged, or was written by a newer Optuna") as raised:
        toy.ledger_of(sweep)
    assert raised.value.exit_code == ExitCode.CHECKPOINT


def test_a_line_at_the_end_of_the_ledger_that_cannot_be_read_is_damage(sweep: toy.Definition) -> None:
    with journal(sweep).open("ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(DamagedSweepError, match="is damaged: Expecting value"):
        toy.ledger_of(sweep).create()


@pytest.mark.parametrize(
    ("name", "content"),
    [("result.json", "{"), ("result.json", '{"state": 1}'), ("result.json", "[]"), ("metrics.jsonl", "\0\0\n{}\n")],
)
def test_a_file_of_a_trial_that_cannot_be_read_is_named(sweep: toy.Definition, name: str, content: str) -> None:
    journal(sweep).unlink()
    folder = sweep.trial(0).folder
    (folder / "result.json").unlink()
    (folder / name).write_text(content)
    with pytest.raises(DamagedSweepError, match=rf"trials/0/{name} is damaged"):
        toy.control(sweep)


def test_torn_notes_of_launches_are_passed_over(sweep: toy.Definition) -> None:
    trial = sweep.trial(0)
    before = trial.seconds()
    with (trial.folder / LAUNCHES).open("a") as file:
        file.write('{"run": 0, "sta')
    assert trial.seconds() == before
    trial.note_start(0)
    trial.note_end(0, 0)
    assert trial.launches()[-1]["code"] == 0 and before <= trial.seconds() < before + 60


def test_folders_that_are_gone_are_made_anew_and_the_best_one_is_missed(sweep: toy.Definition) -> None:
    shutil.rmtree(sweep.trial(1).folder)
    ledger = toy.ledger_of(sweep)
    assert json.loads(to_json(sweep, ledger))["best"] == [1]
    with pytest.raises(DamagedSweepError, match=r"trial 1 is the best, and its configuration is gone: .*/1/conf"):
        write_best(sweep, ledger)


def test_waiting_trials_whose_folders_are_gone_are_still_judged(tmp_path: Path) -> None:
    told: dict[str, Any] = {"sampler": GRID, "pruner": HYPERBAND, "trials": 4}
    sweep = toy.definition(tmp_path, "x=0.3,0.4,0.5,0.6", "+pace=choice(0)", **told)
    ledger = toy.ledger_of(sweep)
    for number in range(4):
        assert ledger.create() == number
        ledger.fill(number, sweep.component("sampler"), 0)
        ledger.pause(number, float(number))
    assert toy.control(sweep) == 0
    assert [state for _, state, *_ in toy.results(sweep)] == ["COMPLETE", "PRUNED", "COMPLETE", "PRUNED"]


@pytest.mark.parametrize("left", [0, 9])
def test_a_full_disk_ends_the_sweep_with_a_word_and_room_lets_it_go_on(
    done: toy.Definition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """Only so many more files can be made durable; what is written then is torn."""
    sweep = toy.definition(tmp_path, "x=0.5,0.25", "+pace=choice(0)", trials=2, sampler=GRID)
    room, sync = [left], os.fsync

    def full(descriptor: int) -> None:
        room[0] -= 1
        if room[0] < 0:
            os.ftruncate(descriptor, max(os.fstat(descriptor).st_size - 5, 0))
            raise OSError(28, "No space left on device")
        sync(descriptor)

    toy.ledger_of(sweep)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SweepError, match="No space left on device") as raised:
        toy.control(sweep)
    assert raised.value.exit_code in (ExitCode.FAILED, ExitCode.USAGE)
    monkeypatch.undo()
    assert toy.control(sweep) == 0 and toy.results(sweep) == toy.results(done)


def test_what_no_process_can_be_started_for_is_told(tmp_path: Path) -> None:
    sweep = toy.definition(tmp_path / "sweep", "x=0.5,0.25", sampler=GRID)
    object.__setattr__(sweep, "cwd", tmp_path / "gone")
    with pytest.raises(UnwritableError, match=r"cannot go on, No such file or directory: .*gone") as raised:
        toy.control(sweep)
    assert raised.value.exit_code == ExitCode.FAILED
    with pytest.raises(SweepError, match="it is not there: make it"):
        sweep.check_place()


def test_a_sweep_in_which_every_trial_failed_has_failed(tmp_path: Path) -> None:
    sweep = toy.definition(tmp_path, "+do=choice(crash)", "x=0.5,0.6", "+pace=choice(0)", sampler=GRID, failures=5)
    for _ in range(2):
        with pytest.raises(TooManyFailuresError, match=r"all 2 trials failed.*trial 1: out of memory, say") as raised:
            toy.control(sweep)
    assert raised.value.exit_code == ExitCode.FAILED
    told = json.loads(to_json(sweep, toy.ledger_of(sweep)))
    assert told["best"] == [] and write_best(sweep, toy.ledger_of(sweep)) == []


def test_a_metric_that_no_evaluation_has_fails_the_trial_at_its_first(tmp_path: Path) -> None:
    sweep = toy.definition(tmp_path, "x=0.5,0.6", "+hold=choice(1)", sampler=GRID, objective="eval/los", failures=0)
    with pytest.raises(TooManyFailuresError, match=r"never reported eval/los, .*its runs report eval/loss, memory"):
        toy.control(sweep)
    (trial,) = toy.ledger_of(sweep).trials()
    assert trial.user_attrs["update"] < toy.UPDATES


def test_a_text_is_no_value_of_a_metric(tmp_path: Path) -> None:
    record = {"update": 1, "samples": 1, "eval/sample": "once upon", "eval/loss": "NaN", "lr": None}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    assert metrics_of(tmp_path) == {"eval/loss"}
    assert history(tmp_path, "eval/sample") == [] and len(history(tmp_path, "eval/loss")) == 1


def test_a_controller_that_waits_for_a_sweep_that_hangs_can_be_told_to_end(tmp_path: Path) -> None:
    sweep = toy.definition(tmp_path, "x=0.5,0.6", sampler=GRID)
    files.lock(tmp_path / ".asking", lambda: False)
    signals = ControllerSignals()
    threading.Timer(0.2, lambda: setattr(signals, "first", Signals.SIGTERM)).start()
    assert Controller(sweep, toy.ledger_of(sweep), signals, toy.Silent()).run() == ExitCode.PREEMPTED
    assert not (sweep.trial(0).folder / VALUES).exists()
