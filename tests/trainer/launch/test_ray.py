"""The guide to Ray as it stands, on a real cluster of two nodes: what is lost comes back, and the bits are the same."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.comparison import differences, final_state, losses
from benchmarks.exact_resume_cases import Case
from benchmarks.processes import ranks_below
from benchmarks.runs import finish, lines, train
from gradwire.checkpoint import Checkpointer
from gradwire.trainer.launch import ray_cluster
from gradwire.trainer.launch.job import Job
from gradwire.trainer.launch.ray_cluster import Room, room

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
SHELL = "".join(re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "ray.md").read_text(), re.DOTALL | re.MULTILINE))
COMMANDS = [line.partition("#")[0].strip() for line in SHELL.splitlines() if not line.endswith("# not run here")]
RUNNING, LOCAL = COMMANDS
SMALL = [
    *(each for each in Case("decoder", "fp32", 2, 1, "SIGTERM").overrides() if not each.startswith("launch.processes")),
    "run.length=300 updates",  # which take far longer than Ray takes to give a node up
    "evaluation.every=150 updates",
]
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two nodes on this machine, each with two cores to give away."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    yield cluster
    cluster.shutdown()


def processes(what: str) -> list[psutil.Process]:
    """Processes of the test's own cluster and commands whose command line holds a text."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(what in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def await_agents(count: int) -> list[psutil.Process]:
    """The agents, once there are so many: Ray ends those of earlier commands in its own time."""
    deadline = time.monotonic() + 240
    while len(found := processes("ray::HostAgent")) != count:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def documented(command: str, *overrides: str, **environ: str) -> subprocess.Popen[str]:
    """Start a command of the guide."""
    program, *words = shlex.split(command)
    arguments = [str(Path(sys.executable).parent / program), *words, *overrides]
    variables = os.environ | QUIET | environ
    return subprocess.Popen(arguments, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(update: int, folder: Path, process: subprocess.Popen[str], starts: int = 1) -> None:
    """Wait until a run that was started so many times has logged an update."""
    deadline = time.monotonic() + 240
    while [line["event"] for line in lines(folder, "starts.jsonl")].count("start") < starts or not any(
        line["update"] >= update for line in lines(folder)
    ):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.01)


def test_a_cluster_of_its_own_takes_the_command_and_goes_with_it(tmp_path):
    output = finish(documented(LOCAL, f"run.dir={tmp_path / 'run'}", *SMALL, "run.length=6 updates"))
    assert "(done)" in output and "update 6/6" in output
    await_agents(0)


def on(cluster, **more):
    return {"engine": "ray", "address": cluster.address, "hosts": 2, "processes": 1} | more


def test_a_signal_to_the_command_lets_all_hosts_save_and_ends_with_75(cluster, start):
    command = start(launch=on(cluster), updates=10_000, pause=0.05, env=QUIET)
    command.wait_for("update 2")
    command.process.terminate()
    assert command.wait() == 75
    assert command.status["exit_code"] == 75 and "stopped" in command.log(0) and "stopped" in command.log(1)
    assert f"gradwire resume runs/{command.run_dir.name}" in command.out


def test_an_exception_ends_the_run_with_1_and_is_shown_once(cluster, start):
    command = start(launch=on(cluster, restarts=2), plan={"1:2": "raise"}, env=QUIET)
    assert command.wait() == 1
    assert command.err.count("ZeroDivisionError: planted") == 1 and "rank 1 failed" in command.err
    assert command.status["status"] == "failed" and "Restarting" not in command.out


def test_agents_and_ranks_go_with_the_command(cluster, start):
    command = start(launch=on(cluster), updates=10_000, pause=0.05, env=QUIET)
    command.wait_for("update 2")
    ours = await_agents(2) + ranks_below(os.getpid())
    assert len(ours) == 4
    command.process.kill()
    _, alive = psutil.wait_procs(ours, timeout=300)
    assert alive == []


def test_a_cluster_that_does_not_answer_is_a_mistake(start):
    command = start(launch={"engine": "ray", "address": "127.0.0.1:1", "hosts": 1}, env=QUIET)
    assert command.wait() == 2
    assert "launch.address=127.0.0.1:1: no Ray cluster answers there" in command.err


def test_a_killed_rank_and_a_lost_node_are_replaced_and_the_run_ends_in_the_same_bits(cluster, tmp_path):
    finish(train(tmp_path / "undisturbed", [*SMALL, "launch.processes=2"]))
    folder = tmp_path / "run"
    options = ["launch.processes=1", f"run.dir={folder}", *SMALL]
    process = documented(RUNNING, *options, RAY_ADDRESS=cluster.address)
    wait_for(20, folder, process)
    await_agents(2)
    ranks_below(os.getpid())[0].send_signal(signal.SIGKILL)
    wait_for(60, folder, process, starts=2)
    cluster.remove_node(cluster.list_all_nodes()[-1])  # its agent goes with it, and both hosts fit on the other node
    output = finish(process)
    assert "was killed by SIGKILL" in output and re.search(r"^Host \d .* was lost", output, re.MULTILINE)
    assert len(re.findall(r"^(?!host 1).*Restarting from the newest checkpoint", output, re.MULTILINE)) == 2
    assert differences(final_state(tmp_path / "undisturbed"), final_state(folder)) == []
    assert losses(tmp_path / "undisturbed") == losses(folder)
    assert json.loads((folder / "status.json").read_text())["status"] == "done"


CPU, GPU = {"CPU": 16.0, "memory": 1e9}, {"CPU": 64.0, "GPU": 8.0}


@pytest.mark.parametrize(
    ("launch", "nodes", "taken"),
    [
        ({"processes": "auto", "device": "auto"}, [CPU, GPU, GPU | {"GPU": 4.0}], Room(4, 4)),
        ({"processes": "auto", "device": "cpu"}, [CPU, GPU], Room(2, 0)),
        ({"processes": "auto", "device": "auto"}, [{"CPU": 1.0}], Room(1, 0)),
        ({"processes": 3, "device": "auto"}, [CPU, GPU], Room(3, 3)),
        ({"processes": 3, "device": "auto"}, [CPU], Room(3, 0)),
        ({"processes": 3, "device": "cuda"}, [CPU], Room(3, 3)),
    ],
)
def test_each_host_takes_a_core_and_a_gpu_for_each_process(launch, nodes, taken):
    assert room(launch, nodes) == taken
    assert taken.bundle.get("GPU", 0) == taken.gpus and taken.bundle["CPU"] == taken.processes


def test_a_restart_takes_the_snapshots_of_this_launch_alone(tmp_path):
    from gradwire.checkpoint import State

    def save(update):
        Checkpointer(str(tmp_path / "store")).save(State({"x": update}, {}), {"updates": update}, {})

    save(1)
    elsewhere = Job({"checkpoint": {"url": str(tmp_path / "store")}}, run_dir=tmp_path)
    before = ray_cluster._newest(elsewhere)
    assert ray_cluster._again(elsewhere, before).restore is None
    own = Job({"checkpoint": {"url": None}}, run_dir=tmp_path)
    assert ray_cluster._again(own, None).restore == "latest-if-any"
    save(2)
    assert ray_cluster._again(elsewhere, before).restore == "latest-if-any"
