"""Trials in parts as Slurm jobs: those that wait at rungs, and members that go on from each other.

Slurm's programs are stood in for by a few lines each, which run jobs as processes here: what is looked at is how the
controller goes about its jobs, which `test_sweep_on_slurm.py` shows on a real cluster for trials in one part.
"""

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gradwire.trainer.sweep.executors import Slurm
from gradwire.trainer.sweep.executors.base import Launch
from gradwire.trainer.sweep.executors.slurm import Job
from tests.trainer.sweep import toy

PROGRAMS = {
    "sbatch": """
for word; do
  case $word in --job-name=*) name=${word#*=};; --output=*) out=${word#*=};; --chdir=*) cd "${word#*=}";; esac
done
exec 9>"$JOBS.lock"; flock 9  # which the job has too until it is known
setsid bash -c 'echo "$0" >"$JOBS/$$"; exec 9>&-; exec bash "$1"' "$name" "$word" >>"${out//%%/%}" 2>&1 &
echo $!
""",
    "squeue": """
exec 9>"$JOBS.lock"; flock 9
for word; do case $word in --name=*) name=${word#*=};; --jobs=*) job=${word#*=};; esac; done
for file in "$JOBS"/*; do
  number=${file##*/}
  grep -qs "^State:.[^Z]" "/proc/$number/status" || continue  # an ended one that nobody has asked for is none
  if [ "$number" = "$job" ]; then echo RUNNING; elif [ "$(cat "$file")" = "${name%%,*}" ]; then echo "$number"; fi
done
""",
    "scancel": 'for job; do :; done; pkill -TERM --session "$job" python || true\n',
    "srun": 'shift; exec "$@"\n',
}
HYPERBAND = {"_target_": "gradwire.trainer.sweep.pruners.Hyperband", "factor": 2, "rungs": 2, "brackets": 1}
PBT = {"_target_": "gradwire.trainer.sweep.population.Pbt", "population": 2, "generations": 2}
RANDOM = {"_target_": "gradwire.trainer.sweep.samplers.Random"}


class ToySlurm(Slurm):
    """Submits the toy's runs."""

    def start(self, launch: Launch, slot: int, slots: int) -> Job:
        return super().start(toy.ToyLaunch(**vars(launch)), slot, slots)


@dataclass(frozen=True)
class Submitted(toy.ToyDefinition):
    """A sweep whose trials are jobs."""

    def component(self, name: str) -> Any:
        return ToySlurm() if name == "executor" else super().component(name)


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "jobs").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}", prepend=":")
    monkeypatch.setenv("JOBS", f"{tmp_path / 'jobs'}")


@pytest.mark.parametrize(
    "changes",
    [{"trials": 4, "sampler": RANDOM, "pruner": HYPERBAND}, {"trials": None, "sampler": PBT}],
    ids=["rungs", "generations"],
)
def test_parts_of_trials_are_jobs_that_outlive_their_controller(tmp_path: Path, changes: dict[str, Any]) -> None:
    alone = toy.definition(tmp_path / "alone", **changes, parallel=2)
    assert toy.control(alone) == 0

    told = toy.definition(tmp_path / "100% ours", **changes, parallel=2)
    submitted = Submitted(**vars(told) | {"study": "ours, really"})
    controller = os.fork()
    if controller == 0:
        try:
            os.setpgid(0, 0)
            toy.control(submitted)
        finally:
            os._exit(0)
    deadline = time.monotonic() + 240
    while sum(len(path.read_text().split()) for path in submitted.directory.glob("trials/*/ran")) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(controller, signal.SIGKILL)  # with what it is calling: nothing is submitted after its end
    os.waitpid(controller, 0)
    assert toy.control(submitted) == 0
    assert toy.results(submitted) == toy.results(alone)
    for number in range(4):
        ran, expected = ((sweep.trial(number).folder / "ran").read_text() for sweep in (submitted, alone))
        assert ran == expected
    assert subprocess.run(["squeue", "--jobs=0"], capture_output=True, text=True).stdout == ""
