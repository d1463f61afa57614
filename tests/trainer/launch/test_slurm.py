"""The same command in a real Slurm of one node: srun, sbatch and scancel."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TOOLS = ("srun", "sbatch", "scancel", "sinfo", "slurmctld", "slurmd", "munged")

CONFIGURATION = """
ClusterName=gradwire
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def install() -> None:
    """Have Slurm's programs here, or skip with the reason."""
    if all(shutil.which(tool) for tool in TOOLS):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("no Slurm here, and installing it takes root and apt-get")
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in ("apt-get update -qq", "apt-get install -y -qq --no-install-recommends slurm-wlm munge"):
        done = subprocess.run(command.split(), env=environ, capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            pytest.skip(f"{command}: {done.stderr.strip()[-300:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands reach a cluster of this machine alone."""
    install()
    if getpass.getuser() != "root":
        pytest.skip("Slurm's daemons need root here")
    folder = tmp_path_factory.mktemp("slurm")
    for each in (folder, *folder.parents[:3]):
        each.chmod(0o755)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    ports = [free_port(), free_port()]
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, ports=ports, cores=os.cpu_count()))
    names = {"socket": "munge.socket", "key-file": "key", "log-file": "munge.log", "pid-file": "munge.pid"}
    munge = [f"--{option}={folder / name}" for option, name in (names | {"seed-file": "seed"}).items()]
    environ = os.environ | {"SLURM_CONF": str(configuration)}
    daemons = [["munged", "--foreground", "--force", *munge], ["slurmctld", "-D", "-i"], ["slurmd", "-D", "-N", host]]
    running = []
    for daemon in daemons:
        with (folder / f"{daemon[0]}.out").open("w") as output:
            running.append(subprocess.Popen(daemon, env=environ, stdout=output, stderr=output))
        time.sleep(1)
    try:
        wait_until_idle(environ, folder)
        yield {"SLURM_CONF": str(configuration)}
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(20)


def wait_until_idle(environ: dict[str, str], folder: Path) -> None:
    """Wait for the node, or skip with what the daemons said."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        state = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environ, capture_output=True, text=True).stdout.strip()
        if state == "idle":
            return
        time.sleep(0.5)
    said = [f"{each.name}: {each.read_text()[-300:]}" for each in (*folder.glob("*.out"), *folder.glob("*.log"))]
    pytest.skip(f"Slurm did not come up (node {state or 'unknown'}): {' | '.join(said)}")


def test_srun_with_two_tasks_makes_two_ranks(start, slurm):
    command = start(outer=("srun", "-n2", "--overcommit", sys.executable), env=slurm)
    assert command.wait() == 0, command.err
    assert "update 4" in command.log(0) and "update 4" in command.log(1)
    assert command.out.count("rank 0: update 4") == 1 and "rank 1: update" not in command.out
    assert command.status["status"] == "done"


def test_srun_with_one_task_per_node_starts_the_hosts_workers(start, slurm):
    command = start(outer=("srun", "-N1", "-n1", sys.executable), env=slurm, launch={"processes": 2})
    assert command.wait() == 0, command.err
    assert "update 4" in command.log(1) and command.out.count("rank 0: update 4") == 1


def test_an_exception_under_srun_ends_all_ranks_and_is_shown_once(start, slurm):
    command = start(outer=("srun", "-n2", "--overcommit", sys.executable), env=slurm, plan={"1:2": "raise"})
    assert command.wait(60) == 1
    assert command.err.count("ZeroDivisionError: planted") == 1 and "rank 1 failed" in command.err


def test_a_deaf_rank_under_srun_does_not_keep_the_run_alive(start, slurm):
    command = start(
        outer=("srun", "-n2", "--overcommit", sys.executable), env=slurm, plan={"0:2": "raise", "1:2": "deaf"}
    )
    assert command.wait(60) == 1
    assert "rank 0 failed" in command.err


def test_scancel_with_a_signal_preempts_the_ranks(start, slurm):
    command = start(
        outer=("srun", "-n2", "--overcommit", "-Jstop", sys.executable), env=slurm, updates=1000, pause=0.05
    )
    command.wait_for("update 2")
    subprocess.run(["scancel", "--signal=TERM", "--name=stop"], env=os.environ | slurm, check=True)
    assert command.wait(60) == 75
    assert command.status["exit_code"] == 75


def test_a_batch_script_runs_the_command_as_on_any_machine(start, slurm):
    batch = ("sbatch", "--wait", "--overcommit", "-n2", "--output=batch.txt", "--wrap")
    inner = start(where="inner")  # only for its arguments
    inner.process.kill()
    line = " ".join(f"'{word}'" for word in inner.process.args)
    directory = inner.directory.parent / "batch"
    directory.mkdir()
    done = subprocess.run([*batch, line], cwd=directory, env=os.environ | slurm, timeout=120)
    assert done.returncode == 0
    assert "rank 0: update 4" in (directory / "batch.txt").read_text()
    (run,) = (directory / "runs").iterdir()
    assert "update 4" in (run / "logs" / "rank-1.log").read_text()
