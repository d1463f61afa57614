"""The guide to Slurm as it stands: a job is preempted, requeued and ends in the same bits; a canceled one is not."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.comparison import differences, final_state, losses
from benchmarks.exact_resume_cases import Case
from benchmarks.runs import lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]
SHELL = "".join(re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "slurm.md").read_text(), re.DOTALL | re.MULTILINE))
COMMANDS = [line.partition("#")[0].strip() for line in SHELL.splitlines() if not line.endswith("# not run here")]
AGENTS, TASKS, SUBMIT, PREEMPT, PREEMPT_SCRIPT, CANCEL = COMMANDS
SMALL = [
    *(each for each in Case("decoder", "fp32", 2, 1, "SIGTERM").overrides() if not each.startswith("launch.processes")),
    "run.length=120 updates",
    "evaluation.every=60 updates",
]
FAKE = """#!/bin/bash
trap 'exit 75' TERM
touch "started-$SLURM_RESTART_COUNT"
[[ -n $SLURM_RESTART_COUNT ]] && exit 0
for each in {1..3000}; do sleep 0.1; done
"""


class Desk:
    """A folder to type Slurm's commands in."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder, self._environ = folder, os.environ | environ
        (folder / "examples").symlink_to(ROOT / "examples")

    def call(self, command: str, *more: str, options: str = "") -> str:
        """Run a command with options behind its first word and arguments at its end; what it printed."""
        program, *rest = shlex.split(command)
        words = [program, *shlex.split(options), *rest, *more]
        done = subprocess.run(words, cwd=self.folder, env=self._environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def submit(self, *overrides: str, options: str = "") -> str:
        """The number of a job that runs the shipped script."""
        return self.call(SUBMIT, *overrides, options=f"--parsable {options}").strip()

    def told(self, job: str, key: str) -> str:
        """What Slurm says about a job."""
        (value,) = re.findall(rf"\b{key}=(\S+)", self.call(f"scontrol show job {job}"))
        return str(value)

    def start_again(self, job: str) -> None:
        """Start a requeued job soon: by itself Slurm waits two minutes, for it revokes credentials of this second."""
        self.call(f"scontrol update jobid={job} StartTime=now+3")

    def wait(self, job: str, *states: str) -> None:
        """Wait until a job is in one of these states."""
        until(lambda: self.told(job, "JobState") in states, lambda: self.told(job, "JobState") + self.output(job))

    def output(self, job: str) -> str:
        """What the job printed."""
        return "".join(path.read_text() for path in self.folder.glob(f"*-{job}.txt"))


def until(holds: Callable[[], bool], said: Callable[[], str]) -> None:
    """Wait for a condition; after a while the test fails with what there is to say."""
    deadline = time.monotonic() + 300  # Slurm itself may take a minute until it starts a job
    while not holds():
        assert time.monotonic() < deadline, said()
        time.sleep(0.05)


@pytest.fixture
def desk(tmp_path, slurm):
    return Desk(tmp_path, real(slurm))


def real(slurm):
    return slurm | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, slurm):
    """A run of two ranks to its end."""
    desk = Desk(tmp_path_factory.mktemp("undisturbed"), real(slurm))
    desk.call(TASKS, "run.dir=run", *SMALL, options="--overcommit")
    return desk.folder / "run"


def test_an_agent_on_each_node_and_a_rank_in_each_task_give_the_same_bits(desk, undisturbed):
    desk.call(AGENTS, "run.dir=run", *SMALL, "launch.processes=1")
    assert differences(final_state(undisturbed), final_state(desk.folder / "run")) == []


def test_a_preempted_job_is_requeued_and_ends_in_the_same_bits(desk, undisturbed):
    job = desk.submit(*SMALL, options="--ntasks-per-node=2 --overcommit")
    run = desk.folder / "runs" / "first"
    until(lambda: lines(run)[-1:] != [] and lines(run)[-1]["update"] >= 5, lambda: desk.output(job))
    desk.call(PREEMPT.replace("JOBID", job))
    desk.wait(job, "PENDING")
    assert json.loads((run / "status.json").read_text())["exit_code"] == 75
    desk.start_again(job)
    desk.wait(job, "COMPLETED")
    assert "continuing from update" in (run / "logs" / "rank-0.log").read_text()
    assert differences(final_state(undisturbed), final_state(run)) == []
    assert losses(undisturbed) == losses(run)


@pytest.fixture
def quick(tmp_path, slurm):
    """A desk where `gradwire` only waits for a signal, in the job's first start."""
    command = tmp_path / "bin" / "gradwire"
    command.parent.mkdir()
    command.write_text(FAKE)
    command.chmod(0o755)
    return Desk(tmp_path, slurm | {"PATH": f"{command.parent}:{os.environ['PATH']}"})


def started(desk, job):
    until((desk.folder / "started-").exists, lambda: desk.output(job))


def test_a_signal_for_the_script_alone_reaches_the_ranks(quick):
    job = quick.submit()
    started(quick, job)
    quick.call(PREEMPT_SCRIPT.replace("JOBID", job))
    quick.wait(job, "PENDING")
    quick.start_again(job)
    quick.wait(job, "COMPLETED")
    assert (quick.folder / "started-1").exists()


def test_a_signal_that_comes_before_there_is_anything_to_save_requeues_too(quick):
    command = quick.folder / "bin" / "gradwire"
    command.write_text(FAKE.replace("trap", "# trap"))
    job = quick.submit()
    started(quick, job)
    quick.call(PREEMPT.replace("JOBID", job))
    quick.wait(job, "PENDING")
    quick.call(CANCEL.replace("JOBID", job))


def test_a_canceled_job_is_not_requeued(quick):
    job = quick.submit()
    started(quick, job)
    quick.call(CANCEL.replace("JOBID", job))
    quick.wait(job, "CANCELLED")
    assert quick.told(job, "Restarts") == "0"


def test_a_run_that_failed_is_not_requeued(quick):
    (quick.folder / "bin" / "gradwire").write_text("#!/bin/bash\nexit 3\n")
    job = quick.submit()
    quick.wait(job, "FAILED")
    assert quick.told(job, "ExitCode") == "3:0"
