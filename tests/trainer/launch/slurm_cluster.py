"""A real Slurm on this machine alone: its daemons, and two nodes to run on."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.trainer.launch.ports import free_port

TOOLS = ("srun", "sbatch", "scancel", "sinfo", "slurmctld", "slurmd", "munged")
OTHER = "127.0.0.2"  # a node's name must lead to it, and this one does on every Linux

CONFIGURATION = """
ClusterName=gradwire
FirstJobId={first}
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
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
NodeName={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores} State=UNKNOWN
NodeName={other} NodeAddr={other} Port={ports[2]} CPUs={cores} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The variables with which Slurm's commands reach the cluster, until the generator goes on."""
    install()
    if getpass.getuser() != "root":
        pytest.skip("Slurm's daemons need root here")
    for each in (folder, *folder.parents[:3]):
        each.chmod(0o755)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    ports = [free_port() for _ in range(3)]
    first = ports[0] % 10_000 + 1  # jobs meet at ports that follow from their number: not those of another cluster here
    text = CONFIGURATION.format(first=first, host=host, other=OTHER, folder=folder, ports=ports, cores=os.cpu_count())
    configuration.write_text(text)
    names = {"socket": "munge.socket", "key-file": "key", "log-file": "munge.log", "pid-file": "munge.pid"}
    munge = [f"--{option}={folder / name}" for option, name in (names | {"seed-file": "seed"}).items()]
    environ = os.environ | {"SLURM_CONF": str(configuration)}
    daemons = [["munged", "--foreground", "--force", *munge], ["slurmctld", "-D", "-i"]]
    daemons += [["slurmd", "-D", "-N", node] for node in (host, OTHER)]
    running = []
    for number, daemon in enumerate(daemons):
        with (folder / f"{daemon[0]}-{number}.out").open("w") as output:
            running.append(subprocess.Popen(daemon, env=environ, stdout=output, stderr=output))
        time.sleep(1)
    try:
        wait_until_idle(environ, folder)
        yield {"SLURM_CONF": str(configuration)}
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(120)


def install() -> None:
    """Have Slurm's programs here, or skip with the reason."""
    if all(shutil.which(tool) for tool in TOOLS):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("no Slurm here, and installing it takes root and apt-get")
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        "apt-get -o DPkg::Lock::Timeout=300 update -qq",
        "apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends slurm-wlm munge",
    ):
        done = subprocess.run(command.split(), env=environ, capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            pytest.skip(f"{command}: {done.stderr.strip()[-300:]}")


def wait_until_idle(environ: dict[str, str], folder: Path) -> None:
    """Wait for the nodes, or skip with what the daemons said."""
    deadline = time.monotonic() + 240
    states: set[str] = set()
    while time.monotonic() < deadline:
        listed = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], env=environ, capture_output=True, text=True)
        states = set(listed.stdout.split())
        if states == {"idle"}:
            return
        time.sleep(0.5)
    said = [f"{each.name}: {each.read_text()[-300:]}" for each in (*folder.glob("*.out"), *folder.glob("*.log"))]
    pytest.skip(f"Slurm did not come up (nodes {states or 'unknown'}): {' | '.join(said)}")
