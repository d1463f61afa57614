"""The same command under torchrun, and on several hosts."""

import json
import sys
import time
from pathlib import Path

import pytest

from gradwire.trainer.launch.ports import free_port

pytestmark = pytest.mark.slow
TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2")


def free_endpoint() -> str:
    return f"127.0.0.1:{free_port()}"


def two_hosts(start, **config):
    """Two controllers on this machine that take themselves for two hosts."""
    config["launch"] = {"hosts": 2, "endpoint": free_endpoint(), "processes": 1} | config.get("launch", {})
    first = start(where="first", **config)
    return first, start(where="second", **config)


def serving(*commands):
    """The host that created the run directory, and the other one."""
    return sorted(commands, key=lambda command: not (command.directory / "runs").exists())


def test_under_torchrun_the_command_becomes_the_worker(start):
    command = start(outer=TORCHRUN)
    assert command.wait() == 0
    assert "rank 0: update 4" in command.out and "rank 1: update" not in command.out
    assert "update 4" in command.log(1) and command.status["status"] == "done"
    assert f"gradwire resume runs/{command.run_dir.name}" in command.out


def test_under_torchrun_the_first_failing_rank_shows_its_traceback(start):
    command = start(outer=TORCHRUN, plan={"1:2": "raise"})
    assert command.wait() == 1
    assert "rank 1 failed" in command.err and "rank 0 failed" not in command.err
    assert command.status["status"] == "failed"


def test_under_torchrun_a_mistake_is_said_once(start):
    command = start(outer=TORCHRUN, mistake=True)
    assert command.wait() == 1
    assert [line for line in command.err.splitlines() if line == "a planted mistake"] == ["a planted mistake"]
    assert not (command.directory / "runs").exists()


def test_the_directory_records_75_under_torchrun(start):
    command = start(outer=TORCHRUN, updates=10_000, pause=0.05)
    command.wait_for("update 2")
    command.process.terminate()
    assert command.wait() != 0
    assert command.status["status"] == "preempted" and command.status["exit_code"] == 75


def test_two_hosts_train_together_by_rank_0s_configuration(start):
    launch, updates = {"hosts": 2, "endpoint": free_endpoint(), "processes": 1}, {"first": 5, "second": 7}
    commands = [start(where=where, launch=launch, updates=count) for where, count in updates.items()]
    assert [command.wait() for command in commands] == [0, 0]
    host, other = serving(*commands)
    count = updates[host.directory.name]
    assert [host.log(rank).count(f"rank {rank}: update") for rank in (0, 1)] == [count, count]
    assert f"rank 0: update {count - 1}" in host.out and "rank" not in other.out.replace("rank-0.log", "")


def test_an_exception_on_one_host_ends_both_and_is_shown_on_both(start):
    commands = two_hosts(start, plan={"1:2": "raise"}, launch={"restarts": 2})
    assert [command.wait() for command in commands] == [1, 1]
    assert all("rank 1 failed" in command.err and "ZeroDivisionError" in command.err for command in commands)


def test_a_rank_killed_on_one_host_is_restarted_on_both(start):
    commands = two_hosts(start, plan={"1:2": "kill"}, launch={"restarts": 1})
    assert [command.wait() for command in commands] == [0, 0]
    host, _ = serving(*commands)
    assert "restore latest-if-any" in host.log(0) and "restore latest-if-any" in host.log(1)


def test_a_signal_to_one_host_stops_both_with_75(start):
    commands = two_hosts(start, updates=10_000, pause=0.05)
    while not any("update 2" in command.out for command in commands):
        assert all(command.process.poll() is None for command in commands)
        time.sleep(0.1)
    commands[1].process.terminate()
    assert [command.wait() for command in commands] == [75, 75]


def test_a_host_that_is_gone_ends_the_others_with_1_and_is_named(start):
    commands = two_hosts(start, updates=10_000, pause=0.05, patience=10.0)
    while not any("update 2" in command.out for command in commands):
        assert all(command.process.poll() is None for command in commands)
        time.sleep(0.1)
    host, other = serving(*commands)
    other.process.kill()
    assert host.wait() == 1
    assert "Host 1 no longer answers" in host.out and host.status["status"] == "failed"


def test_the_serving_host_gone_ends_the_others_with_1(start):
    commands = two_hosts(start, updates=10_000, pause=0.05)
    while not any("update 2" in command.out for command in commands):
        assert all(command.process.poll() is None for command in commands)
        time.sleep(0.1)
    host, other = serving(*commands)
    host.process.kill()
    assert other.wait() == 1
    assert "The host that serves launch.endpoint=" in other.err and "Traceback" not in other.err


def test_hosts_go_on_in_a_folder_that_all_of_them_see_and_nobody_else_may_meanwhile(start, tmp_path):
    shared = {"run": {"name": "test", "dir": str(tmp_path / "run")}, "again": True}
    assert [command.wait() for command in two_hosts(start, updates=3, **shared)] == [0, 0]
    commands = two_hosts(start, updates=10_000, pause=0.05, **shared)
    log, status = tmp_path / "run" / "logs" / "rank-1.log", tmp_path / "run" / "status.json"
    while "update 5" not in log.read_text():
        assert all(command.process.poll() is None for command in commands)
        time.sleep(0.1)
    intruder = start(where="third", **shared)
    assert intruder.wait() == 2 and "is being trained by another process" in intruder.err
    assert json.loads(status.read_text())["status"] == "running"
    commands[0].process.terminate()
    assert [command.wait() for command in commands] == [75, 75]
    assert "start 3 restore latest-if-any" in log.read_text()
    assert json.loads(status.read_text())["status"] == "preempted"


def test_pods_are_the_hosts_of_their_completion_index(start):
    launch = {"hosts": 2, "endpoint": free_endpoint(), "processes": 1}
    second = start(where="second", launch=launch, env={"JOB_COMPLETION_INDEX": "1"})
    time.sleep(2)
    first = start(where="first", launch=launch, env={"JOB_COMPLETION_INDEX": "0"})
    assert [first.wait(), second.wait()] == [0, 0]
    assert "rank 0: update 4" in first.out and not (second.directory / "runs").exists()


def test_hosts_without_an_endpoint_are_refused(start):
    command = start(launch={"hosts": 2})
    assert command.wait() == 2
    assert "launch.endpoint=host:port" in command.err
