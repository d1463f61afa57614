"""Saving while training goes on: one snapshot at a time, written by a thread from a staged copy."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.errors import CheckpointError, CheckpointWriteError, StoreFull, WriterFenced
from gradwire.checkpoint.policy import Policy, Standing
from gradwire.checkpoint.ranks import Ranks
from gradwire.checkpoint.saving import Request, Saver
from gradwire.checkpoint.staging import Staging
from gradwire.checkpoint.state import State

log = logging.getLogger(__name__)
Stage = Literal["copy", "none"]


class Saving:
    """A snapshot on its way to the store.

    Attributes:
        stall: Seconds that `start` held training up: for the snapshot before, and for the copy.
        seconds: From the start until it was durable or had failed; None before.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._over = threading.Event()
        self._outcome: Commit | BaseException | None = None
        self._told = False
        self.stall = 0.0
        self.seconds: float | None = None

    @property
    def done(self) -> bool:
        """Whether it is durable or has failed. Ranks learn of it at slightly different times: decide nothing by it."""
        return self._over.is_set()

    def wait(self) -> Commit:
        """The commit, once the snapshot is durable. All ranks call it, or none.

        Raises:
            CheckpointWriteError: it was not committed, on no rank; the last commit stays.
            WriterFenced: another writer has taken the store over.
            CheckpointError: a rank no longer answers.
        """
        self._over.wait()
        if isinstance(self._outcome, Commit):
            return self._outcome
        assert self._outcome is not None
        self._told = True
        raise self._outcome

    @property
    def failure(self) -> BaseException | None:
        """Why it failed, once it is done; None where it did not."""
        return self._outcome if isinstance(self._outcome, BaseException) else None

    @property
    def told(self) -> bool:
        """Whether the caller has had the failure raised."""
        return self._told

    def end(self, outcome: Commit | BaseException) -> None:
        """Say what came of it."""
        self._outcome = outcome
        self.seconds = time.monotonic() - self._began
        self._over.set()

    def release(self) -> None:
        """Training goes on."""
        self.stall = time.monotonic() - self._began


class Background:
    """Saves snapshots while training goes on, with all ranks.

    Args:
        saver: Writes them.
        ranks: Who saves; the thread talks to them over a group of its own.
        stage: `copy` copies the state first; with `none`, training waits until the snapshot is durable.
        policy: What becomes of a run whose snapshots fail.
        answer: Called at each start, when nothing is under way: answers for what has become of earlier snapshots since.

    Raises:
        ValueError: no such stage.
    """

    def __init__(
        self, saver: Saver, ranks: Ranks, stage: Stage, policy: Policy, answer: Callable[[], None] = lambda: None
    ) -> None:
        if stage not in ("copy", "none"):
            raise ValueError(f"stage must be 'copy' or 'none', found {stage!r}")
        self._saver = saver
        self._ranks = ranks
        self._stage = stage
        self._policy = policy
        self._answer = answer
        self._staging = Staging()
        self._apart: Ranks | None = None
        self._thread: threading.Thread | None = None
        self._saving: Saving | None = None
        self.standing = Standing()
        self.newest: Commit | None = None

    def start(self, state: State, request: Request) -> Saving:
        """Begin a snapshot; as Checkpointer.start says."""
        saving = Saving()
        self.settle()
        self._answer()
        self._saving = saving
        if self._stage == "none":
            self._write(saving, lambda: state, request, self._ranks)
        elif self._may_begin(saving, state):
            source, ranks = self._staged(state), self._own_group()
            name = f"snapshot of update {request.clock.get('updates')}"
            self._thread = threading.Thread(target=self._write, args=(saving, source, request, ranks), name=name)
            self._thread.start()
        if self._thread is None:
            self.settle()
        saving.release()
        return saving

    def save(self, state: State, request: Request) -> Commit:
        """Save a snapshot without a copy; as Checkpointer.save says."""
        self.settle()
        self._saving = saving = Saving()
        self._write(saving, lambda: state, request, self._ranks)
        try:
            return saving.wait()
        finally:
            self.settle(quiet=True)

    def settle(self, *, quiet: bool = False) -> None:
        """Wait until nothing is under way, and answer for what failed as the policy says.

        Args:
            quiet: A failure is only logged: something else is to be raised, or to be done all the same.

        Raises:
            CheckpointError: a snapshot failed, and the run does not go on.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        saving, self._saving = self._saving, None
        if saving is None:
            return
        failure = saving.failure
        if failure is None:
            self.standing = self.standing.after_success()
            return
        self.standing = self.standing.after_failure(full=isinstance(failure.__cause__, StoreFull))
        if saving.told:
            return
        if not quiet and not self._goes_on(failure):
            raise failure
        if self._ranks.rank == 0:
            log.warning("%s%s", failure, f" ({self.standing})" if self.standing.measures else "")

    def close(self, *, quiet: bool = False) -> None:
        """Settle, then give back the memory of the copy and the group. Raises as `settle` does."""
        try:
            self.settle(quiet=quiet)
        finally:
            self._staging.release()
            if self._apart is not None:
                self._apart.close()
                self._apart = None

    def _goes_on(self, failure: BaseException) -> bool:
        forgivable = isinstance(failure, CheckpointWriteError) and not isinstance(failure, WriterFenced)
        return forgivable and self._policy.goes_on(self.standing)

    def _may_begin(self, saving: Saving, state: State) -> bool:
        """While saving pauses, look for room before the state is copied."""
        if not self.standing.paused:
            return True
        try:
            self._saver.check_room(self._ranks, state)
        except CheckpointError as error:
            saving.end(error)
            return False
        return True

    def _staged(self, state: State) -> Callable[[], State]:
        """The copy; what prevents it is raised where the ranks tell each other of failures."""
        try:
            staged = self._staging.copy(state)
        except Exception as error:
            return _raising(error)

        def arrived() -> State:
            staged.ready()
            return staged.state

        return arrived

    def _write(self, saving: Saving, source: Callable[[], State], request: Request, ranks: Ranks) -> None:
        try:
            commit = self._saver.save(ranks, source, request)
        except BaseException as error:
            saving.end(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.newest = commit
            saving.end(commit)
            self._saver.prune(ranks, commit)

    def _own_group(self) -> Ranks:
        if self._apart is None:
            self._apart = self._ranks.apart()
        return self._apart


def _raising(error: Exception) -> Callable[[], State]:
    def source() -> State:
        raise error

    return source
