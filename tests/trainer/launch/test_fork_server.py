"""A real server, and programs that it becomes."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gradwire.trainer.launch.errors import LaunchError
from gradwire.trainer.launch.fork_server import _PR_SET_CHILD_SUBREAPER, Child, ForkServer

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
file, act = sys.argv[1:]
told = {"argv": sys.argv, "name": __name__, "environ": dict(os.environ), "path": sys.path[0], "pid": os.getpid(),
        "parent": os.getppid(), "session": os.getsid(0), "torch": "torch" in sys.modules}
Path(file).with_suffix(".part").write_text(json.dumps(told))
Path(file).with_suffix(".part").rename(file)
if act == "sleep":
    time.sleep(60)
elif act == "die":
    os.kill(os.getpid(), signal.SIGSEGV)
elif act == "raise":
    raise ValueError("planted")
elif act != "return":
    sys.exit(int(act))
"""


@pytest.fixture(scope="module", autouse=True)
def adopts_no_orphans_afterwards() -> Iterator[None]:
    """What other tests leave behind does not come to the process of the tests, which would not ask how it ended."""
    yield
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(PROGRAM)
    return str(tmp_path / "program.py")


def code_of(child: Child) -> int:
    deadline = time.monotonic() + 240
    while (code := child.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return code


def test_a_program_runs_as_if_python_had_started_it(server, program, tmp_path):
    child = server.start((program, str(tmp_path / "told"), "return"), {"A": "b", "PATH": os.environ["PATH"]})
    assert code_of(child) == child.poll() == 0
    told = json.loads((tmp_path / "told").read_text())
    assert told["argv"] == [program, str(tmp_path / "told"), "return"] and told["name"] == "__main__"
    assert told["environ"] == {"A": "b", "PATH": os.environ["PATH"]} and told["path"] == str(tmp_path)
    assert told["parent"] == os.getpid() and told["session"] == told["pid"] == child.pid and told["torch"]


@pytest.mark.parametrize(("act", "code"), [("return", 0), ("75", 75), ("raise", 1), ("die", -signal.SIGSEGV)])
def test_a_program_ends_as_it_would(server, program, tmp_path, act, code):
    assert code_of(server.start((program, str(tmp_path / "told"), act), dict(os.environ))) == code


def test_modules_are_programs_too(server):
    assert code_of(server.start(("-m", "gradwire.trainer.worker"), dict(os.environ))) == 2  # it wants a job


def test_a_server_that_was_killed_is_started_anew(server, program, tmp_path):
    server._process.kill()
    server._process.wait()
    assert code_of(server.start((program, str(tmp_path / "told"), "3"), dict(os.environ))) == 3


def test_a_server_that_dies_over_it_is_named(monkeypatch, capfd):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with ForkServer() as server, pytest.raises(LaunchError, match="starts the ranks ended with 1"):
        server.start(("-c",), {})


def test_server_and_programs_go_with_their_controller(program, tmp_path):
    code = (
        "import os, sys, time; from gradwire.trainer.launch.fork_server import ForkServer; server = ForkServer(); "
        f"print(server.start(({program!r}, {str(tmp_path / 'told')!r}, 'sleep'), dict(os.environ)).pid, flush=True); "
        "time.sleep(60)"
    )
    controller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    rank = psutil.Process(int(controller.stdout.readline()))
    server = next(each for each in psutil.Process(controller.pid).children() if each.pid != rank.pid)
    controller.kill()
    controller.wait()
    assert psutil.wait_procs([server], timeout=300)[1] == []
    rank.kill()  # only a worker asks the kernel to go with its controller
