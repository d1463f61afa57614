"""The same command in a real Slurm: srun, sbatch and scancel."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_srun_with_two_tasks_makes_two_ranks(start, slurm):
    command = start(outer=("srun", "-N1", "-n2", "--overcommit", sys.executable), env=slurm)
    assert command.wait() == 0, command.err
    assert "update 4" in command.log(0) and "update 4" in command.log(1)
    assert command.out.count("rank 0: update 4") == 1 and "rank 1: update" not in command.out
    assert command.status["status"] == "done"


def test_srun_with_one_task_per_node_starts_the_hosts_workers(start, slurm):
    command = start(outer=("srun", "-N1", "-n1", sys.executable), env=slurm, launch={"processes": 2})
    assert command.wait() == 0, command.err
    assert "update 4" in command.log(1) and command.out.count("rank 0: update 4") == 1


def test_an_exception_under_srun_ends_all_ranks_and_is_shown_once(start, slurm):
    command = start(outer=("srun", "-N1", "-n2", "--overcommit", sys.executable), env=slurm, plan={"1:2": "raise"})
    assert command.wait() == 1
    assert command.err.count("ZeroDivisionError: planted") == 1 and "rank 1 failed" in command.err


def test_a_deaf_rank_under_srun_does_not_keep_the_run_alive(start, slurm):
    command = start(
        outer=("srun", "-N1", "-n2", "--overcommit", sys.executable), env=slurm, plan={"0:2": "raise", "1:2": "deaf"}
    )
    assert command.wait() == 1
    assert "rank 0 failed" in command.err


@pytest.mark.parametrize(
    ("layout", "processes"), [(("-N1", "-n2", "--overcommit"), 2), (("-N2", "-n2"), 1)], ids=["ranks", "agents"]
)
def test_scancel_with_a_signal_preempts_the_ranks(start, slurm, layout, processes):
    outer = ("srun", *layout, "-Jstop", sys.executable)
    command = start(outer=outer, env=slurm, updates=10_000, pause=0.05, launch={"processes": processes})
    command.wait_for("update 2")
    subprocess.run(["scancel", "--signal=TERM", "--name=stop"], env=os.environ | slurm, check=True)
    assert command.wait() == 75
    assert command.status["exit_code"] == 75 and "stopped" in command.log(1)


def test_a_batch_script_runs_the_command_as_on_any_machine(start, slurm):
    batch = ("sbatch", "--wait", "--overcommit", "-N1", "-n2", "--output=batch.txt", "--wrap")
    inner = start(where="inner")  # only for its arguments
    inner.process.kill()
    line = " ".join(f"'{word}'" for word in inner.process.args)
    directory = inner.directory.parent / "batch"
    directory.mkdir()
    done = subprocess.run([*batch, line], cwd=directory, env=os.environ | slurm, timeout=300)
    assert done.returncode == 0
    assert "rank 0: update 4" in (directory / "batch.txt").read_text()
    (run,) = (directory / "runs").iterdir()
    assert "update 4" in (run / "logs" / "rank-1.log").read_text()
