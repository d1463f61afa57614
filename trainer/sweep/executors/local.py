"""Trials on this host, as processes of the controller."""

import ctypes
import json
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gradwire.trainer.launch.claim import hold
from gradwire.trainer.launch.errors import RunInUseError
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.run_directory import STATUS
from gradwire.trainer.sweep.executors.base import Launch

_PR_SET_PDEATHSIG = 1


class Local:
    """This host. Several trials at once share its GPUs, or its cores where there are none.

    A trial whose controller dies is told by the kernel to save and to end.
    """

    def check(self) -> None:
        """Processes can be started everywhere."""

    def start(self, launch: Launch, slot: int, slots: int) -> "Process":
        """Start a launch as a process of its own session, so that the terminal's signals reach the controller only."""
        controller, libc = os.getpid(), ctypes.CDLL(None, use_errno=True)
        cores = share(sorted(os.sched_getaffinity(0)), slot, slots)

        def prepare() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            os.sched_setaffinity(0, cores)
            if os.getppid() != controller:  # it died before the kernel was told
                os._exit(ExitCode.PREEMPTED)

        launch.output.parent.mkdir(parents=True, exist_ok=True)
        with launch.output.open("ab") as output:
            return Process(
                subprocess.Popen(
                    launch.command(),
                    cwd=launch.cwd,
                    env=_environment(slot, slots),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=prepare,
                )
            )

    def left(self, launch: Launch) -> "Orphan | None":
        """A launch whose controller died: it is about to end."""
        orphan = Orphan(launch.run_dir)
        return orphan if orphan.poll() is None else None


class Process:
    """A launch that is a child of this process."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def poll(self) -> int | None:
        """Its exit code; below zero for a signal's number."""
        return self._process.poll()

    def stop(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it; its workers go with it."""
        self._process.kill()


class Orphan:
    """A launch of a controller that is gone, known by the claim that it holds on its run's folder."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def poll(self) -> int | None:
        """None while the folder is claimed; then 75, since what was saved is all that matters."""
        try:
            hold(self._run_dir)()
        except RunInUseError:
            return None
        return int(ExitCode.PREEMPTED)

    def stop(self) -> None:
        """Send SIGTERM again, in case the kernel's was missed."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        try:
            status = json.loads((self._run_dir / STATUS).read_text())
            if status["host"] == socket.gethostname() and status["status"] == "running":
                os.kill(status["pid"], number)
        except (OSError, ValueError, KeyError):
            return  # it has just ended, or runs on another host


def share(things: Sequence[int], slot: int, slots: int) -> list[int]:
    """A slot's part of devices or cores: equally many for each, one of them shared where there are too few."""
    each = len(things) // slots
    return list(things[slot * each : (slot + 1) * each]) if each else [things[slot % len(things)]]


def _environment(slot: int, slots: int) -> dict[str, str]:
    environment = dict(os.environ)
    devices = _devices() if slots > 1 else []
    if devices:
        chosen = share(range(len(devices)), slot, slots)
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices[index] for index in chosen)
    return environment


def _devices() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    names = [name.strip() for name in named.split(",")] if named else [str(index) for index in range(count)]
    return names[:count]
