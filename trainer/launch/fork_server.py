"""A process that imports what every rank needs, and forks them: ranks share the modules and begin at once.

It has no thread, device or connection of its own, so that a fork of it is as good as a new process. It imports beside
the controller, which composes the configuration meanwhile. A rank is an orphan of the server's, which the kernel hands
to the controller: it is the controller's child, and dies with it.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from gradwire.trainer.launch.errors import LaunchError

_IMPORTS = ("torch._dynamo", "gradwire.trainer.body")  # every optimizer of torch imports its compiler
_PR_SET_CHILD_SUBREAPER = 36
_ADOPTION = 10.0  # seconds that the kernel may take to hand a rank over


class Child:
    """A process that was forked for this one.

    Args:
        pid: Of the process, which leads a session of its own.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """How it ended: its exit code, or minus the signal; None while it runs."""
        if self._code is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self._code = os.waitstatus_to_exitcode(ended[1])
        return self._code


class ForkServer:
    """Starts Python programs as children of this process, without their imports."""

    def __init__(self) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._open()

    def _open(self) -> None:
        self._connection, theirs = socket.socketpair()
        self._answers = self._connection.makefile("r")
        with theirs:
            number = theirs.fileno()
            program = [sys.executable, "-m", "gradwire.trainer.worker", "--fork-server", str(number)]
            # In a group of its own: Ctrl-C is for the controller, which tells the ranks.
            self._process = subprocess.Popen(program, pass_fds=[number], process_group=0)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Run `python ARGUMENTS…`.

        Args:
            arguments: A script, or `-m` and a module; then what it is told.
            environment: All of its environment. What libraries read while they are loaded is the server's.

        Raises:
            LaunchError: the server ended, which was started anew if it had ended before.
        """
        if self._process.poll() is not None:
            self.close()
            self._open()
        request = {"controller": os.getpid(), "arguments": list(arguments), "environment": dict(environment)}
        try:
            self._connection.sendall(f"{json.dumps(request)}\n".encode())
            answer = self._answers.readline()
        except OSError:
            answer = ""
        if not answer:
            raise LaunchError(f"The process that starts the ranks ended with {self._process.wait()}: see above.")
        return Child(int(answer))

    def close(self) -> None:
        """End the server; what it started goes on."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        self._connection.close()

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(number: int) -> None:
    """Be the server on a connection, until the controller closes it or is gone."""
    gc.disable()  # modules stay: looking for garbage while they are imported takes a tenth of the time
    for name in _IMPORTS:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=number) as connection, connection.makefile("r") as requests:
        for line in requests:
            between = os.fork()
            if between == 0:
                if os.fork() == 0:
                    _become(json.loads(line), connection)
                os._exit(0)
            os.waitpid(between, 0)


def _become(request: Mapping[str, Any], connection: socket.socket) -> NoReturn:
    """Be the program that is asked for; this process is a copy of the server."""
    code = 1
    try:
        os.setsid()
        _await_parent(request["controller"])
        connection.sendall(f"{os.getpid()}\n".encode())
        connection.close()
        gc.enable()
        os.environ.clear()
        os.environ.update(request["environment"])
        _run(request["arguments"])
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:  # never back into the server's loop
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _await_parent(controller: int) -> None:
    """Wait until the kernel has handed this process over."""
    deadline = time.monotonic() + _ADOPTION
    while os.getppid() != controller:
        if time.monotonic() > deadline:  # the controller is gone
            os._exit(1)
        time.sleep(0.001)


def _run(arguments: Sequence[str]) -> None:
    """What `python ARGUMENTS…` does."""
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")
