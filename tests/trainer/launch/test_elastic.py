"""Controllers on this machine that take themselves for hosts, and come and go."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.processes import end_all
from tests.trainer.launch.conftest import Command, Start
from tests.trainer.launch.test_outer_launchers import free_endpoint

pytestmark = pytest.mark.slow
PATIENCE = {"silence": 8.0, "suspicion": 4.0, "first_call": 60.0}


def a_run(folder: Path, **launch: Any) -> dict[str, Any]:
    """What every host of the run is told; its folder is on a disk that all of them see."""
    hosts = {"hosts": "1:2", "endpoint": free_endpoint(), "processes": 1}
    run = {"name": "test", "dir": str(folder / "run")}
    return {"launch": hosts | launch, "run": run, "again": True, "elastic": PATIENCE, "updates": 10_000, "pause": 0.05}


def kill(command: Command) -> None:
    """End a host with all its processes at once."""
    end_all(command.process.pid)
    command.process.wait()


def wait_for(path: Path, text: str, *commands: Command) -> None:
    deadline = time.monotonic() + 240
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, f"{text!r} not in {path}: {[each.out + each.err for each in commands]}"
        time.sleep(0.05)


def serving(start: Start, run: dict[str, Any], where: str) -> Command:
    """A host that serves the endpoint: of several on one machine it is the one that comes first."""
    command, (host, port) = start(where=where, **run), run["launch"]["endpoint"].split(":")
    deadline = time.monotonic() + 240
    while socket.socket().connect_ex((host, int(port))):
        assert time.monotonic() < deadline and command.process.poll() is None, command.out + command.err
        time.sleep(0.1)
    return command


def test_a_run_goes_on_while_hosts_are_lost_join_and_leave(start: Start, tmp_path: Path) -> None:
    run, log = a_run(tmp_path), tmp_path / "run" / "logs" / "rank-0.log"
    leader = serving(start, run, "first")
    second = start(where="second", **run)
    wait_for(log, "of 2", leader, second)
    wait_for(log, "update 3\n", leader, second)
    kill(second)
    wait_for(log, "hosts 2 then 1: Host 127.0.0.1", leader)
    third = start(where="third", **run)
    wait_for(log, "hosts 1 then 2: Host 127.0.0.1 joins", leader, third)
    text = log.read_text().split("hosts 2 then 1")[1]
    saved = int(text.split("stopped ")[1].split()[0])
    assert f"start {saved} restore latest-if-any" in text  # the one that waited cost no update
    time.sleep(1)
    third.process.terminate()
    assert third.wait() == 75
    wait_for(log, "hosts 2 then 1: Host 127.0.0.1 leaves", leader)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "running"
    leader.process.terminate()
    assert leader.wait() == 75
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "preempted"
    assert "Traceback" not in leader.err + third.err and "Restarting" not in leader.out


def test_the_host_where_they_meet_may_be_started_again_and_gone_for_good_it_leaves_a_run_to_resume(
    start: Start, tmp_path: Path
) -> None:
    run, log = a_run(tmp_path, restarts=1, wait="45 seconds"), tmp_path / "run" / "logs" / "rank-1.log"
    leader, other = serving(start, run, "first"), start(where="second", **run)
    wait_for(log, "update 3\n", leader, other)
    (worker,) = other.workers()
    worker.kill()
    wait_for(log, "hosts 2 then 2: rank 1 was killed by SIGKILL", leader, other)
    kill(leader)
    time.sleep(1)
    before = log.read_text().count("restore")
    successor = start(where="third", **run)
    deadline = time.monotonic() + 240
    while log.read_text().count("restore") == before:
        assert time.monotonic() < deadline and other.process.poll() is None, other.out + other.err
        time.sleep(0.1)
    assert "update 2\n" not in log.read_text().rpartition("restore latest-if-any")[2]
    kill(successor)
    assert other.wait() == 75
    assert "no longer answers: this host waits 45 s for it" in other.out
    assert "run the same command again, with --resume" in other.err and "Traceback" not in other.err


def test_an_exception_ends_all_hosts_with_1(start: Start, tmp_path: Path) -> None:
    run = a_run(tmp_path, hosts="2:2", restarts=3) | {"again": False, "plan": {"1:2": "raise"}}
    commands = [start(where=where, **run) for where in ("first", "second")]
    assert [command.wait() for command in commands] == [1, 1]
    assert all("ZeroDivisionError: planted in this rank" in command.err for command in commands)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "failed"
