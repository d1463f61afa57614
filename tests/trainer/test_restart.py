"""A rank that is killed is restarted from where this launch is, not from what lies in the store beside it."""

import shutil
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.exact_resume import Campaign
from benchmarks.processes import ranks_below
from benchmarks.runs import GRADWIRE, finish, held, lines
from tests.trainer.test_exact_resume import KILLED

pytestmark = pytest.mark.slow


def test_a_restart_before_the_first_save_repeats_the_resume_that_was_asked_for(
    campaign: Campaign, tmp_path: Path
) -> None:
    folder = shutil.copytree(campaign.undisturbed(KILLED), tmp_path / "run")
    end = lines(folder)[-1]["update"]
    command = [
        *GRADWIRE,
        "resume",
        f"{folder}@5",
        "launch.restarts=1",
        "checkpoint.every=null",
        "run.length=1500 samples",
    ]
    process = psutil.Popen(command, env=held(6), stdout=-1, stderr=-2, text=True)
    while not any(line["update"] > 5 for line in lines(folder)) or lines(folder)[-1]["update"] >= end:
        assert process.poll() is None
        time.sleep(0.005)
    (worker,) = ranks_below(process.pid)
    worker.kill()
    finish(process)
    log = (folder / "logs" / "rank-0.log").read_text()
    assert log.count("continuing from update 5") == 2
    assert f"continuing from update {end}" not in log
    updates = [line["update"] for line in lines(folder)]
    assert updates == list(range(updates[-1] + 1)) and updates[-1] > end
