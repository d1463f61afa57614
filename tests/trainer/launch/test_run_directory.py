"""Run directories: created once, found again, held by one process, truthful about the end."""

import json
import subprocess
import sys

import pytest

from gradwire.trainer.launch.claim import hold
from gradwire.trainer.launch.errors import RunExistsError, RunInUseError, RunNotFoundError
from gradwire.trainer.launch.run_directory import (
    RunReference,
    closing_lines,
    create,
    status_of,
    write_config,
    write_status,
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def config(name="small", directory=None, **more):
    return {"run": {"name": name, "dir": directory}, **more}


def test_two_runs_of_one_second_get_two_directories():
    assert len({create(config(), []) for _ in range(4)}) == 4


def test_the_name_ends_with_the_runs_name_made_safe():
    directory = create(config("my run/№1"), [])
    assert directory.parent.name == "runs" and directory.name.endswith("-my-run-1")
    assert directory.is_absolute()


def test_a_directory_given_is_taken():
    assert create(config(directory="here/it/is"), []).parts[-3:] == ("here", "it", "is")


def test_a_directory_with_a_run_is_never_reused():
    create(config(directory="run"), [])
    with pytest.raises(RunExistsError, match="gradwire resume run"):
        create(config(directory="run"), [])


def test_a_run_is_found_by_path_and_by_name():
    directory = create(config(), [])
    for text in (str(directory), f"runs/{directory.name}", directory.name):
        assert RunReference.parse(text) == RunReference(directory, None)


def test_an_update_is_split_off():
    directory = create(config(), [])
    assert RunReference.parse(f"{directory.name}@120") == RunReference(directory, 120)


def test_an_at_sign_in_a_path_is_no_update():
    directory = create(config(directory="user@host"), [])
    assert RunReference.parse("user@host") == RunReference(directory, None)


def test_an_unknown_run_is_refused_with_the_ones_there_are():
    directory = create(config(), [])
    with pytest.raises(RunNotFoundError, match=directory.name) as refusal:
        RunReference.parse("nothing")
    assert refusal.value.exit_code == 3


def test_a_new_configuration_keeps_the_old_one():
    directory = create(config(x=1), ["x=1"])
    write_config(directory, config(x=1), [])
    assert not (directory / "config-1.yaml").exists()
    write_config(directory, config(x=2), ["x=2"])
    assert "x: 1" in (directory / "config-1.yaml").read_text() and "x: 2" in (directory / "config.yaml").read_text()
    assert (directory / "overrides.txt").read_text() == "x=1\nx=2\n"


def test_an_interpolation_in_a_value_stays_text():
    directory = create(config(x="${oc.env:HOME}"), [])
    from gradwire.trainer.config import load_resolved

    assert load_resolved(directory / "config.yaml").config["x"] == "${oc.env:HOME}"


def test_a_run_that_another_process_holds_is_refused():
    directory = create(config(), [])
    code = f"""
import time
from pathlib import Path
from gradwire.trainer.launch.claim import hold
hold(Path({str(directory)!r}))
print(1, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(RunInUseError, match="another process"):
            hold(directory)
        other.kill()
    hold(directory)()  # free again after a kill


@pytest.mark.parametrize(
    ("code", "word"), [(0, "done"), (1, "failed"), (2, "failed"), (3, "failed"), (75, "preempted")]
)
def test_the_status_says_how_it_ended(code, word):
    directory = create(config(), [])
    write_status(directory, status_of(code), code)
    record = json.loads((directory / "status.json").read_text())
    assert (record["status"], record["exit_code"]) == (word, code)


def test_the_last_lines_can_be_typed():
    directory = create(config(), [])
    lines = closing_lines(directory, 75)
    assert f"run       runs/{directory.name} (preempted)" in lines
    assert f"resume    gradwire resume runs/{directory.name}" in lines
    assert f"report    gradwire report runs/{directory.name}" in lines
