"""Trials as Slurm jobs: each launch a batch job of its own, which outlives the controller and is found again."""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.sweep.errors import ExecutorError
from gradwire.trainer.sweep.executors.base import Launch

_SCRIPT, _CODE = ".slurm.sh", ".slurm-exit"
_EVERY = 2.0  # seconds between two questions to Slurm about a job
_AGAIN = 5.0  # seconds after which a job that was told to save and still runs is told again
_SETTLE = 10.0  # seconds in which the exit code of a job that is gone may still appear on a shared disk
_EARLY = 128 + 15  # of srun, where the signal came before there was anything to save

_BATCH = """#!/bin/bash
trap 'scancel --signal=TERM "$SLURM_JOB_ID"' TERM # the script alone was told: the ranks are meant
[[ -n $SLURM_CPUS_PER_TASK ]] && export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun --wait=120 {command} &
step=$!
while kill -0 "$step" 2>/dev/null; do wait "$step"; done
wait "$step"
code=$?
echo "$code" > {code}.new && mv {code}.new {code}
exit "$code"
"""


class Slurm:
    """A Slurm cluster whose nodes mount the sweep's folder; `sweep.parallel` is how many jobs are in the queue at once.

    Args:
        options: Options of sbatch, each a text: ["--partition=gpu", "--gpus-per-node=8", "--time=4:00:00"].
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._options = tuple(options)

    def check(self) -> None:
        """Jobs need Slurm's programs here.

        Raises:
            ExecutorError: there are none.
        """
        for program in ("sbatch", "squeue", "scancel"):
            _require(program)

    def start(self, launch: Launch, slot: int, slots: int) -> "Job":
        """Submit a launch.

        Raises:
            ExecutorError: Slurm is not here, or does not take it.
        """
        script, code = launch.run_dir / _SCRIPT, launch.run_dir / _CODE
        code.unlink(missing_ok=True)
        script.write_text(_BATCH.format(command=shlex.join(launch.command()), code=shlex.quote(str(code))))
        output = str(launch.output).replace("%", "%%")  # else a pattern of sbatch's
        own = [f"--job-name={_name(launch)}", f"--output={output}", f"--chdir={launch.cwd}"]
        fixed = ["--parsable", "--open-mode=append", "--no-requeue", "--nodes=1", "--ntasks-per-node=1"]
        told = _call("sbatch", *fixed, *self._options, *own, str(script))
        return Job(told.strip().partition(";")[0], code)

    def left(self, launch: Launch) -> "Job | None":
        """The job of this name, where there still is one."""
        found = _call("squeue", "--noheader", f"--name={_name(launch)}", "--format=%i").split()
        return Job(found[0], launch.run_dir / _CODE) if found else None


class Job:
    """A batch job.

    Args:
        number: Its number.
        code: The file that its script writes the exit code to.
    """

    def __init__(self, number: str, code: Path) -> None:
        self._number, self._code = number, code
        self._asked = self._told = time.monotonic()
        self._gone: float | None = None
        self._stopped = False

    def poll(self) -> int | None:
        """The exit code of its ranks; -1 where it went without one, as with its node."""
        if self._code.exists():
            code = int(self._code.read_text())
            return int(ExitCode.PREEMPTED) if code == _EARLY else code
        now = time.monotonic()
        if self._gone is None and now - self._asked >= _EVERY:
            self._asked = now
            if self._state() is None:
                self._gone = now
            elif self._stopped and now - self._told >= _AGAIN:
                self.stop()
        if self._gone is None or now - self._gone < _SETTLE:
            return None
        return int(ExitCode.PREEMPTED) if self._stopped else -1

    def stop(self) -> None:
        """Signal the ranks, or take the job out of the queue where it waits."""
        self._stopped, self._told = True, time.monotonic()
        waiting = self._state() == "PENDING"
        subprocess.run(["scancel", *([] if waiting else ["--signal=TERM"]), self._number], capture_output=True)

    def kill(self) -> None:
        """Cancel the job."""
        subprocess.run(["scancel", self._number], capture_output=True)

    def _state(self) -> str | None:
        """What Slurm calls its state; None where it is gone."""
        asked = ["squeue", "--noheader", f"--jobs={self._number}", "--format=%T"]
        done = subprocess.run(asked, capture_output=True, text=True)
        if done.returncode != 0 and "Invalid job id" not in done.stderr:
            return "UNKNOWN"  # Slurm does not answer at this moment
        return done.stdout.strip() or None


def _name(launch: Launch) -> str:
    """A job's name: squeue takes a comma for the end of one."""
    return re.sub(r"[^\w.-]", "_", launch.name)


def _require(program: str) -> None:
    if shutil.which(program) is None:
        raise ExecutorError(f"sweep/executor=slurm needs Slurm's {program} here, and there is none")


def _call(program: str, *arguments: str) -> str:
    _require(program)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    kept = {name: value for name, value in os.environ.items() if name == "SLURM_CONF"}
    done = subprocess.run([program, *arguments], env=environ | kept, capture_output=True, text=True)
    if done.returncode != 0:
        raise ExecutorError(f"{program} refused the trial: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
