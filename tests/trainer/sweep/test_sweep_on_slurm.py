"""The guide's sweep on Slurm as it stands, on a real cluster: jobs outlive their controller and are found again."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradwire.trainer.sweep.definition import Definition
from tests.trainer.launch.conftest import slurm
from tests.trainer.sweep.test_real_sweep import BLOCKS, SHORT, updates
from tests.trainer.sweep.toy import ledger_of

__all__ = ["slurm"]
(COMMAND,) = re.findall(r"^gradwire sweep .*executor=slurm.*$", "".join(BLOCKS), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jobs_go_on_while_their_controller_is_gone(slurm: dict[str, str], tmp_path: Path) -> None:
    environ = os.environ | slurm | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    program = str(Path(sys.executable).parent / "gradwire")
    command = [program, *shlex.split(COMMAND)[1:], *SHORT, "run.length=300 updates", "evaluation.every=100 updates"]
    controller = subprocess.Popen(command, cwd=tmp_path, env=environ)
    trials = tmp_path / "sweeps" / "slurm" / "trials"
    deadline = time.monotonic() + 300
    while not all(len(updates(trials / number)) > 2 for number in "01"):
        assert controller.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    controller.kill()
    controller.wait()
    resumed = [program, "sweep", "--resume", "sweeps/slurm"]
    done = subprocess.run(resumed, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    sweep = Definition.read(tmp_path / "sweeps" / "slurm")
    assert [trial.state.name for trial in ledger_of(sweep).trials()] == ["COMPLETE", "COMPLETE"]
    for number in range(2):
        assert updates(trials / str(number)) == list(range(301))
        assert sum("start" in record for record in sweep.trial(number).launches()) == 1
