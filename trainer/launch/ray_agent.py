"""What runs in a Ray cluster on behalf of one host: it starts the host's controller and passes on what that prints."""

import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gradwire.trainer.launch.environment import cores
from gradwire.trainer.launch.ports import free_port

Line = tuple[str, str]  # "out" or "err", and the text
_HOST = (sys.executable, "-m", "gradwire.trainer.launch.host")
_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Spot:
    """Where an agent is.

    Attributes:
        node: Ray's name of its machine.
        address: The machine's address.
        port: A port that is free there.
        cores: Cores of the machine.
    """

    node: str
    address: str
    port: int
    cores: int


class HostAgent:
    """An actor: `start`, then `poll` until there is an exit code. Actor and controller end together."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []

    def spot(self) -> Spot:
        """Where this agent is."""
        import ray

        node = str(ray.get_runtime_context().get_node_id())
        return Spot(node, str(ray.util.get_node_ip_address()), free_port(), cores())

    def start(self, order: str, folder: str, threads: str) -> None:
        """Start the controller.

        Args:
            order: See `host.order`.
            folder: Where relative paths start, if there is such a folder here; else where Ray put this process.
            threads: Of each worker.
        """
        found = Path(folder).is_dir()
        if not found:
            self._lines.put(("err", f"No folder {folder} on this node: relative paths start at {Path.cwd()}.\n"))
        self._process = subprocess.Popen(
            _HOST,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder if found else None,
            env=os.environ | {_THREADS: threads},
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._process.stdin.write(order)
        self._process.stdin.flush()
        for name, stream in (("out", self._process.stdout), ("err", self._process.stderr)):
            self._readers.append(threading.Thread(target=self._read, args=(name, stream), daemon=True))
            self._readers[-1].start()

    def _read(self, name: str, stream: TextIO) -> None:
        for line in stream:
            self._lines.put((name, line))

    def poll(self, patience: float) -> tuple[list[Line], int | None]:
        """What was printed since, as soon as there is something or after `patience` seconds; the exit code at the end.

        A negative code is the signal that ended the controller.
        """
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            for reader in self._readers:  # a child of a worker may live on and keep its stream open
                reader.join(timeout=2)
        lines: list[Line] = []
        with suppress(queue.Empty):
            if code is None:
                lines.append(self._lines.get(timeout=patience))
            while True:
                lines.append(self._lines.get_nowait())
        return lines, code

    def tell(self, number: int) -> None:
        """Send the controller a signal."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
