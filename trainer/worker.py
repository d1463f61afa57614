"""One rank: meet the others, receive the job, run it, and leave with an exit code that says how it went.

Started by the controller as `python -m gradwire.trainer.worker --job FILE`; under torchrun or srun the command itself
becomes the worker and calls `serve`.
"""

import argparse
import atexit
import ctypes
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from gradwire.trainer.launch import failure as failures
from gradwire.trainer.launch import fork_server, run_directory
from gradwire.trainer.launch.broadcast import receive, share
from gradwire.trainer.launch.claim import hold
from gradwire.trainer.launch.environment import Place, place
from gradwire.trainer.launch.errors import BroadcastError
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.failure import Failure
from gradwire.trainer.launch.job import Job
from gradwire.trainer.launch.logs import log_file, redirect
from gradwire.trainer.launch.signals import StopRequest

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from gradwire.trainer.launch.context import WorkerContext

Body = Callable[[Mapping[str, Any], "WorkerContext"], int]
RUN_DIR_KEY = "gradwire/run_dir"
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def main(arguments: Sequence[str] | None = None, body: Body | None = None) -> NoReturn:
    """Entry point of a worker that the controller started; ends the process."""
    parser = argparse.ArgumentParser(prog="python -m gradwire.trainer.worker")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--job", type=Path, help="the job as JSON, read by rank 0")
    task.add_argument("--fork-server", type=int, metavar="FD", help="import, and become ranks as the connection says")
    told = parser.parse_args(arguments)
    if told.fork_server is not None:
        fork_server.serve(told.fork_server)
        sys.exit()
    job: Path = told.job
    here = place(os.environ)
    if here.controller is not None:
        _die_with(here.controller)
    serve(here, lambda: Job.from_json(job.read_text()), body)


def serve(here: Place, prepare: Callable[[], Job], body: Body | None = None) -> NoReturn:
    """Be one rank of the run; ends the process with the run's exit code.

    Args:
        here: This rank's place.
        prepare: Composes and validates the job; called on rank 0 alone.
        body: What to run with the configuration and the context; the trainer by default.
    """
    faulthandler.enable()
    stop = StopRequest()
    stop.install()
    _call_this(f"gradwire-{here.rank}")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    _leave(_Rank(here, stop).run(prepare, body or _train))


class _Rank:
    """The life of one rank, and what is known when it fails."""

    def __init__(self, here: Place, stop: StopRequest) -> None:
        self._here, self._stop = here, stop
        self._store: Store | None = None
        self._run_dir: Path | None = None
        self._mode = "train"
        self._url: str | None = None
        self._dismiss: Callable[[], None] = lambda: None
        self._screens: tuple[TextIO, TextIO] = (sys.stdout, sys.stderr)

    def run(self, prepare: Callable[[], Job], body: Body) -> int:
        """Run the body; whatever it raises becomes a failure that is told once."""
        try:
            return self._run(prepare, body)
        except BroadcastError as error:  # rank 0 says what it is
            return error.exit_code
        except BaseException as error:
            return self._fail(failures.describe_error(error, self._here.rank))

    def _run(self, prepare: Callable[[], Job], body: Body) -> int:
        from gradwire.schedulers import Duration
        from gradwire.trainer.launch import context as contexts
        from gradwire.trainer.launch.watchdog import Watchdog

        here = self._here
        base = contexts.open_store(here, contexts.group_timeout(None))
        self._store = store = contexts.attempt_store(base, here)
        job = self._receive(base, prepare)
        self._move_in(job)
        settings = job.config["launch"]
        patience = Duration.parse(settings["watchdog"]).seconds if settings["watchdog"] else None
        contexts.use_threads(os.environ)
        device = contexts.choose_device(settings["device"], here.local_rank)
        watchdog = Watchdog(
            contexts.own_connection(store), here.rank, here.world_size, patience, lambda f: os._exit(self._fail(f))
        )
        self._dismiss = watchdog.dismiss
        watchdog.start()
        with contexts.process_groups(store, here, device, contexts.group_timeout(patience)) as control:
            context = contexts.worker_context(
                here, job, device, base, store, control, self._stop, watchdog, self._screens[0]
            )
            code = body(job.config, context)
            watchdog.stop()
        self._close(code)
        return code

    def _move_in(self, job: Job) -> None:
        """Know the run directory, and log there."""
        assert job.run_dir is not None
        here, self._run_dir, self._mode, self._url = self._here, job.run_dir, job.mode, job.store_url
        if here.local_rank == 0 and not (job.run_dir / run_directory.CONFIG).exists():  # a host with a disk of its own
            job.run_dir.mkdir(parents=True, exist_ok=True)
            run_directory.write_config(job.run_dir, job.config, job.overrides)
        self._screens = redirect(log_file(job.run_dir, here.rank, job.mode), here.rank)

    def _receive(self, base: "Store", prepare: Callable[[], Job]) -> Job:
        """Rank 0 prepares, creates the run directory unless an earlier attempt did, and tells everybody."""
        assert self._store is not None
        return (
            share(self._store, lambda: self._locate(base, prepare())) if self._here.rank == 0 else receive(self._store)
        )

    def _locate(self, base: "Store", job: Job) -> Job:
        if job.run_dir is None and base.check([RUN_DIR_KEY]):
            job = job.at(Path(base.get(RUN_DIR_KEY).decode()))
        if job.run_dir is None:
            job = job.at(run_directory.create(job.config, job.overrides))
        assert job.run_dir is not None
        base.set(RUN_DIR_KEY, str(job.run_dir))
        several = self._here.world_size > self._here.local_world_size
        if self._here.controller is None or several or job.elastic:
            self._open(job, job.run_dir)  # no controller can: there is none, or one on each host
        return job

    def _open(self, job: Job, run_dir: Path) -> None:
        if job.mode == "train":
            hold(run_dir, job.patience)
            if job.restore is None:  # else once the snapshot was found to fit
                run_directory.write_status(run_dir, "running")
            _write(self._screens[0], f"run       {run_directory.shown_as(run_dir)}")

    def _close(self, code: int) -> None:
        keeps_books = self._here.rank == 0 and self._here.controller is None
        if keeps_books and self._run_dir is not None and self._mode == "train":
            self._record(code)
            _write(self._screens[0], "\n".join(run_directory.closing_lines(self._run_dir, code, self._url)))

    def _record(self, code: int) -> None:
        if self._run_dir is not None and self._mode == "train" and run_directory.begun(self._run_dir):
            try:
                run_directory.write_status(self._run_dir, run_directory.status_of(code), code)
            except OSError as error:  # a full disk does not change how the run went
                _write(self._screens[1], f"{error.filename}: {error.strerror}")

    def _fail(self, failure: Failure) -> int:
        """Log the failure, tell the other ranks, leave it for the controller or show it if it is the first.

        Returns:
            The exit code of this process.
        """
        self._dismiss()
        if self._run_dir is not None:  # descriptor 2 is the log
            os.write(2, (failure.trace or failure.message).encode(errors="replace") + b"\n")
        first, failure = self._publish(failure)
        if path := os.environ.get(failures.ERROR_FILE):
            failures.write_error_file(path, failure)
        if self._here.controller is not None:
            return failure.exit_code
        code = int(ExitCode.FAILED) if failure.exit_code == ExitCode.PEER_LOST else failure.exit_code
        self._record(code)
        if first:
            _write(self._screens[1], failure.render())
        return code

    def _publish(self, failure: Failure) -> tuple[bool, Failure]:
        """Whether this is the first failure of all, and the failure with its cause if another rank has named one."""
        if self._store is None:
            return True, failure
        try:
            cause = failures.published(self._store, wait=2.0) if failure.kind == "peer" else None
            if cause is not None:
                return False, failure if cause.kind == "peer" else cause
            return failures.publish(self._store, failure), failure
        except RuntimeError:  # the store went with the process that held it
            return failure.kind != "peer", failure


def _train(config: Mapping[str, Any], context: "WorkerContext") -> int:
    from gradwire.trainer.body import run

    return int(run(dict(config), context))


def _write(screen: TextIO, text: str) -> None:
    screen.write(f"{text}\n")
    screen.flush()


def _die_with(controller: int) -> None:
    """Have the kernel end this process when its controller dies: nobody would watch over it, or hold its run."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != controller:  # it died before the kernel was told
        os._exit(ExitCode.FAILED)


def _call_this(name: str) -> None:
    """Give this process a name of up to 15 characters, which ps and top show."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def _leave(code: int) -> NoReturn:
    """End the process at once: threads and groups may wait for ranks that are gone, or abort on the way down."""
    if code in (ExitCode.DONE, ExitCode.PREEMPTED):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
