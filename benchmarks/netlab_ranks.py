"""Processes on the hosts of a network laboratory: commands that run once, and ranks that stay and call functions."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from benchmarks.netlab import DEVICE, ROOT, Netlab, NetlabError

START = 240  # seconds that ranks may take to import torch and to meet, beside the time-out of their calls


@dataclass(frozen=True)
class Seat:
    """Where and with what environment one rank runs."""

    rank: int
    host: int
    namespace: str
    environment: Mapping[str, str]

    def start(self, command: Sequence[str], output: IO[bytes], errors: IO[bytes], keep: Sequence[int] = ()) -> Any:
        """Start `command` in a process group of its own; file descriptors `keep` stay open in it.

        Not in a session of its own: Linux shares processors out between sessions before threads, which on a host with
        fewer processors than ranks lets one rank's computation stand in the way of another rank's communication.
        """
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command],
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            pass_fds=keep,
            process_group=0,
        )


def seats(lab: Netlab, ranks_per_host: int, environment: Mapping[str, str]) -> list[Seat]:
    """One for each rank, host by host; `environment` adds to this process's and overrides."""
    size, port = len(lab.namespaces) * ranks_per_host, lab.next_port()
    common = {
        "GLOO_SOCKET_IFNAME": DEVICE,
        "MASTER_ADDR": lab.addresses[0],
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(ranks_per_host),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    rows = []
    for rank in range(size):
        host, local = divmod(rank, ranks_per_host)
        own = {"RANK": str(rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(host)}
        rows.append(Seat(rank, host, lab.namespaces[host], {**os.environ, **common, **own, **environment}))
    return rows


@dataclass(frozen=True)
class Finished:
    """How the command of one rank ended; `returncode` is that of a kill where it ran out of time."""

    rank: int
    host: int
    returncode: int
    stdout: str
    stderr: str
    timed_out: bool


class Processes:
    """One process a seat, with its output in files; all are killed at the end of the block."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self.seats = seats
        self.started: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="netlab-")

    def start(self, seat: Seat, command: Sequence[str], keep: Sequence[int] = ()) -> None:
        with self._file(seat.rank, "out").open("wb") as output, self._file(seat.rank, "err").open("wb") as errors:
            self.started.append(seat.start(command, output, errors, keep))

    def stdout(self, rank: int) -> str:
        return self._file(rank, "out").read_text(errors="replace")

    def stderr(self, rank: int) -> str:
        return self._file(rank, "err").read_text(errors="replace")

    def kill(self, rank: int) -> None:
        """Kill the process group of a rank and wait for it."""
        process = self.started[rank]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what the process left behind in its group
        process.wait()

    def close(self) -> None:
        for rank in range(len(self.started)):
            self.kill(rank)
        self._folder.cleanup()

    def _file(self, rank: int, stream: str) -> Path:
        return Path(self._folder.name) / f"{rank}.{stream}"


def run(
    places: Sequence[Seat], command: Sequence[str] | Callable[[int], Sequence[str]], timeout: float
) -> list[Finished]:
    """Run `command` (or `command(rank)`) in every seat, see `Netlab.run`."""
    processes = Processes(places)
    deadline = time.monotonic() + timeout
    try:
        for seat in places:
            processes.start(seat, command(seat.rank) if callable(command) else command)
        return [_finish(processes, seat, deadline) for seat in places]
    finally:
        processes.close()


def _finish(processes: Processes, seat: Seat, deadline: float) -> Finished:
    process = processes.started[seat.rank]
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
        timed_out = False
    except subprocess.TimeoutExpired:
        processes.kill(seat.rank)
        timed_out = True
    rank = seat.rank
    return Finished(rank, seat.host, process.returncode, processes.stdout(rank), processes.stderr(rank), timed_out)


@dataclass(frozen=True)
class Answer:
    """What a function returned on one rank, or the text of why it did not."""

    value: Any = None
    error: str | None = None


class Ranks:
    """Processes on the hosts, joined by gloo, that are started once and call functions together.

    Args:
        places: One for each rank.
        timeout: Seconds that a collective, and a call, may take.

    Raises:
        NetlabError: A rank did not come up.
    """

    def __init__(self, places: Sequence[Seat], timeout: float) -> None:
        self.timeout = timeout
        self._processes = Processes(places)
        self._pipes: list[Connection] = []
        self._calls = 0
        try:
            for seat in places:
                self._start(seat)
            self._raise_for(self._collect(START), "the start")
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(rank, *arguments)` answers on each rank. The function must be importable by its name.

        Raises:
            NetlabError: It failed on a rank or took too long there; the ranks are stopped then.
        """
        answers = self.attempt(function, *arguments)
        if any(answer.error for answer in answers):
            self._raise_for(answers, f"{function.__module__}.{function.__qualname__}")
        return [answer.value for answer in answers]

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> list[Answer]:
        """Like a call, but errors are answers and the ranks stay: for tests that kill or stop some of them."""
        if function.__module__ == "__main__":
            raise NetlabError(f"{function.__qualname__} is in __main__, which the ranks cannot import by that name")
        self._calls += 1
        for pipe in self._pipes:
            try:
                pipe.send((self._calls, function, arguments))
            except OSError:
                continue  # dead: told when its answer is read
        return self._collect(self.timeout)

    @property
    def pids(self) -> list[int]:
        """Processes by rank; each leads a process group."""
        return [process.pid for process in self._processes.started]

    @property
    def alive(self) -> bool:
        """Whether all ranks still run."""
        return bool(self._pipes) and all(process.poll() is None for process in self._processes.started)

    def stop(self) -> None:
        """Kill all ranks."""
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []
        self._processes.close()

    def _start(self, seat: Seat) -> None:
        here, there = Pipe()
        command = [sys.executable, "-m", "benchmarks.netlab_worker", str(there.fileno()), str(self.timeout)]
        self._processes.start(seat, command, keep=(there.fileno(),))
        there.close()
        self._pipes.append(here)

    def _collect(self, patience: float) -> list[Answer]:
        deadline = time.monotonic() + patience
        answers: dict[int, Answer] = {}
        while len(answers) < len(self._pipes):
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                answers |= {rank: Answer(error=f"no answer within {patience:g} s") for rank in waiting.values()}
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]
                call, answer = self._read(rank)
                if call == self._calls:  # else a late answer to an earlier call
                    answers[rank] = answer
        return [answers[rank] for rank in range(len(self._pipes))]

    def _read(self, rank: int) -> tuple[int, Answer]:
        try:
            call, value, error = self._pipes[rank].recv()
            return call, Answer(value, error)
        except (EOFError, OSError):
            code = self._processes.started[rank].wait()
            return self._calls, Answer(error=f"died with {code}\n{self._processes.stderr(rank)[-3000:]}")

    def _raise_for(self, answers: Sequence[Answer], what: str) -> None:
        failures = [f"rank {rank}: {answer.error}" for rank, answer in enumerate(answers) if answer.error]
        if failures:
            self.stop()
            raise NetlabError(f"{what} failed:\n" + "\n".join(failures))
