"""Hosts of one elastic run in a network laboratory, and what can befall them."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.netlab import DEVICE, ROOT, Netlab
from benchmarks.processes import ranks_below
from benchmarks.runs import GRADWIRE, environment, lines
from gradwire.trainer import Callback, Trainer

JOB = [
    "allow_targets=[benchmarks]",
    "model=decoder_1m",
    "model.width=32",
    "model.layers=1",
    "model.heads=2",
    "model.kv_heads=1",
    "model.dropout=0.0",
    "data.context=16",
    "batch.size=12",
    "optimizer.lr=0.0003",
    "evaluation.every=null",
    "run.log_every=1",
    "run.check_replicas=20 updates",
    "noise_scale.every=null",
    "checkpoint=journal",
    "checkpoint.keep=100",
    "logger=none",
    "launch.device=cpu",
    "launch.processes=1",
    "launch.restarts=2",
    "launch.wait=30 seconds",
]
PATIENCE = 200.0  # seconds that anything here may take


class Pace(Callback):
    """Updates of a tiny model take as long as is needed for something to happen between them.

    Args:
        seconds: After each update.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_update(self, trainer: Trainer, outcome: Any) -> None:
        time.sleep(self._seconds)


class LabError(RuntimeError):
    """A run did something else than what was waited for; with what its hosts said."""


class Fleet:
    """The hosts of one run; all processes are gone at the end of the block.

    Args:
        lab: Where they are.
        folder: Of the run, its store, and what the hosts print.
        hosts: As `launch.hosts` has it.
        updates: Of the whole run.
        pace: Seconds between updates.
    """

    def __init__(self, lab: Netlab, folder: Path, hosts: str, updates: int, pace: float) -> None:
        self.lab, self.folder, self.run = lab, folder, folder / "run"
        self._port = lab.next_port()
        self._hosts, self._updates, self._pace = hosts, updates, pace
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._running:
            self.heal(host)
            self.kill(host)

    def start(self, host: int, at: int = 0, run: Path | None = None) -> None:
        """Start the command on a host, which meets the others at host `at`."""
        pace = f"callbacks.pace={{_target_: benchmarks.host_lab.Pace, seconds: {self._pace}}}"
        own = [
            f"run.dir={run or self.run}",
            f"checkpoint.url={self.folder / 'store'}",
            f"run.length={self._updates} updates",
            f"launch.hosts={self._hosts}",
            f"launch.endpoint={self.lab.addresses[at]}:{self._port}",
        ]
        command = [*GRADWIRE, "train", "--resume", *JOB, *own, f"+{pace}"]
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self._output(host).open("ab") as output:
            self._running[host] = subprocess.Popen(
                ["ip", "netns", "exec", self.lab.namespaces[host], *command],
                env=environment() | {"PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )

    def workers(self, host: int) -> list[psutil.Process]:
        """The worker processes of a host."""
        return ranks_below(self._running[host].pid)

    def kill(self, host: int) -> None:
        """End all processes of a host at once."""
        self._signal_all(host, signal.SIGKILL)
        self._running[host].wait()

    def kill_controller(self, host: int) -> None:
        """End the command on a host, and nothing else."""
        self._running[host].kill()
        self._running[host].wait()

    def tell_to_stop(self, host: int) -> None:
        """SIGTERM to the command on a host."""
        self._running[host].terminate()

    def suspend(self, host: int) -> None:
        """Stop all processes of a host where they are."""
        self._signal_all(host, signal.SIGSTOP)

    def wake(self, host: int) -> None:
        """Let them go on."""
        self._signal_all(host, signal.SIGCONT)

    def cut(self, host: int) -> None:
        """Take a host's link down."""
        self._link(host, "down")

    def heal(self, host: int) -> None:
        """Take it up again."""
        self._link(host, "up")

    def wait(self, host: int) -> int:
        """The exit code of a host's command, once it ends."""
        try:
            return self._running[host].wait(PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise LabError(f"host {host} did not end within {PATIENCE:g} s\n{self.said(host)}") from error

    def until(self, update: int, run: Path | None = None) -> None:
        """Wait until an update is logged."""
        self._until(lambda: any(line["update"] >= update for line in lines(run or self.run)), f"update {update}")

    def until_changes(self, count: int) -> None:
        """Wait until training went on after so many changes of hosts."""
        self._until(lambda: len(self.changes()) >= count, f"change {count}")

    def changes(self) -> list[dict[str, Any]]:
        """What was logged at the first new update after each change of hosts."""
        files = ("metrics.abandoned.jsonl", "metrics.jsonl")
        return [line for name in files for line in lines(self.run, name) if "restart/seconds" in line]

    def lost(self) -> int:
        """Updates that were logged and done again."""
        return len(lines(self.run, "metrics.abandoned.jsonl"))

    def newest(self, run: Path | None = None) -> int:
        """The update that was logged last."""
        return int(lines(run or self.run)[-1]["update"])

    def said(self, host: int) -> str:
        """What a host printed, without the progress lines."""
        text = self._output(host).read_text(errors="replace").splitlines()
        return "\n".join(line for line in text if not line.startswith("update "))[-6000:]

    def _until(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            ended = all(process.poll() is not None for process in self._running.values())
            if (ended and not reached()) or time.monotonic() > deadline:
                said = "\n".join(f"--- host {host}\n{self.said(host)}" for host in self._running)
                raise LabError(f"{what} did not come\n{said}")
            time.sleep(0.05)

    def _signal_all(self, host: int, number: signal.Signals) -> None:
        pids = subprocess.run(["ip", "netns", "pids", self.lab.namespaces[host]], capture_output=True, check=True)
        for pid in pids.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), number)

    def _link(self, host: int, state: str) -> None:
        subprocess.run(["ip", "-n", self.lab.namespaces[host], "link", "set", DEVICE, state], check=True)

    def _output(self, host: int) -> Path:
        return self.folder / f"host-{host}.txt"
