"""Real launches of program.py, in directories of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.processes import end_all, ranks_below
from tests.trainer.launch import slurm_cluster

PROGRAM = Path(__file__).with_name("program.py")
LAUNCH = {
    "processes": 2,
    "hosts": 1,
    "endpoint": None,
    "restarts": 0,
    "grace": "60 seconds",
    "wait": "6 seconds",
    "watchdog": "5 minutes",
    "device": "cpu",
    "engine": "command",
    "address": None,
}
INHERITED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "GRADWIRE_CONTROLLER", "OMP_NUM_THREADS")


class Command:
    """One running command, with what it printed so far."""

    def __init__(self, arguments: list[str], directory: Path, environ: dict[str, str]) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self._out = (directory / "out.txt").open("w")
        self._err = (directory / "err.txt").open("w")
        self.process = subprocess.Popen(arguments, cwd=directory, env=environ, stdout=self._out, stderr=self._err)

    @property
    def out(self) -> str:
        return (self.directory / "out.txt").read_text()

    @property
    def err(self) -> str:
        return (self.directory / "err.txt").read_text()

    def wait(self, seconds: float = 300) -> int:
        return self.process.wait(seconds)

    def wait_for(self, text: str, rank: int | None = None, seconds: float = 240) -> None:
        """Wait until the screen shows a text, or the log of a rank has it."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None  # before the look: what it shows last is there then
            if text in (self.out if rank is None else self.log(rank)):
                return
            assert time.monotonic() < deadline and not ended, f"{text!r} not in {self.out}{self.err}"
            time.sleep(0.05)

    def workers(self) -> list[psutil.Process]:
        return ranks_below(self.process.pid) if self.process.poll() is None else []

    @property
    def run_dir(self) -> Path:
        (found,) = (self.directory / "runs").iterdir()
        return found

    @property
    def status(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.run_dir / "status.json").read_text())
        return record

    def log(self, rank: int) -> str:
        return (self.run_dir / "logs" / f"rank-{rank}.log").read_text()

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            end_all(self.process.pid)
            self.process.wait()
        self._out.close()
        self._err.close()


def job(updates: int = 5, plan: dict[str, str] | None = None, launch: dict[str, Any] | None = None, **more: Any) -> str:
    config = {"run": {"name": "test", "dir": None}, "launch": LAUNCH | (launch or {}), "updates": updates}
    return json.dumps(config | {"plan": plan or {}} | more)


Start = Callable[..., Command]


def commands_in(folder: Path) -> Iterator[Start]:
    commands: list[Command] = []

    def run(
        outer: tuple[str, ...] = (sys.executable,), where: str = ".", env: dict[str, str] | None = None, **config: Any
    ) -> Command:
        environ = {name: value for name, value in os.environ.items() if name not in INHERITED} | (env or {})
        arguments = [*outer, str(PROGRAM), "command", job(**config), "an=override"]
        commands.append(Command(arguments, folder / where, environ))
        return commands[-1]

    yield run
    for command in commands:
        command.end()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the command: `start(updates=…, plan={…}, launch={…})`; `outer` puts another launcher before it."""
    yield from commands_in(tmp_path)


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`start` for commands that several tests of a file look at, each in a folder of its own."""
    with ExitStack() as stack:

        def run(**config: Any) -> Command:
            start = stack.enter_context(contextmanager(commands_in)(tmp_path_factory.mktemp("command")))
            return start(**config)

        yield run


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands reach a cluster of this machine alone."""
    yield from slurm_cluster.cluster(tmp_path_factory.mktemp("slurm"))
