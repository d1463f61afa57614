"""Executors: what a trial gets of this host, and what is said where there is no Slurm."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradwire.trainer.sweep.errors import ExecutorError
from gradwire.trainer.sweep.executors import Launch, Local, Slurm
from gradwire.trainer.sweep.executors.local import share

TELL = "import os; print(sorted(os.sched_getaffinity(0)), os.environ.get('CUDA_VISIBLE_DEVICES'))"


@dataclass(frozen=True)
class Telling(Launch):
    """A launch that says what it was given."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", TELL]


def launch(folder: Path) -> Launch:
    return Telling((), None, folder, folder / "output.log", folder, "a-trial")


def told(folder: Path, slot: int, slots: int) -> str:
    running = Local().start(launch(folder), slot, slots)
    while (code := running.poll()) is None:
        time.sleep(0.01)
    assert code == 0
    return (folder / "output.log").read_text().splitlines()[-1]


def test_things_are_shared_out_evenly_and_doubly_where_there_are_too_few() -> None:
    assert [share(range(8), slot, 3) for slot in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert [share(range(2), slot, 5) for slot in range(5)] == [[0], [1], [0], [1], [0]]


def test_trials_at_once_share_the_cores(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert told(tmp_path, 0, 1).startswith(str(cores))
    assert told(tmp_path, 1, 2).startswith(str(share(cores, 1, 2)))


def test_trials_at_once_share_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert told(tmp_path, 1, 2).endswith("6,7")
    assert told(tmp_path, 0, 1).endswith("4,5,6,7")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert told(tmp_path, 2, 4).endswith(" 2")


def test_a_launch_is_the_command_that_anybody_would_type(tmp_path: Path) -> None:
    made = Launch(("optimizer.lr=0.1",), "/mine", tmp_path, tmp_path / "log", tmp_path, "name").command()
    assert made[-5:] == ["train", "--resume", "--config-dir", "/mine", "optimizer.lr=0.1"]


def test_where_there_is_no_slurm_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    Local().check()
    with pytest.raises(ExecutorError, match=r"needs Slurm's sbatch here"):
        Slurm().check()
    with pytest.raises(ExecutorError, match=r"needs Slurm's sbatch here"):
        Slurm().start(launch(tmp_path), 0, 1)


def test_what_slurm_refuses_is_told_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2; exit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ExecutorError, match="invalid partition specified: gpu"):
        Slurm(["--partition=gpu"]).start(launch(tmp_path), 0, 1)
