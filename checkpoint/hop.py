"""From one tier to the next: a thread that copies the newest snapshot onward, whole ones only."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.copying import Copier
from gradwire.checkpoint.epochs import CommitWriter, Draft
from gradwire.checkpoint.errors import CheckpointError, CheckpointWriteError, StoreFull, WriterFenced
from gradwire.checkpoint.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What came of the last attempts of a hop.

    Args:
        arrived: The newest commit that they made in the target; None where they made none.
        failure: Why the last one failed; None where it did not.
    """

    arrived: Commit | None
    failure: Exception | None


class Hop:
    """Copies snapshots from a tier to the next farther one. One at a time; what is overtaken meanwhile is left out.

    There is a thread only while there is something to copy. An attempt that fails is not repeated by itself: the next
    snapshot is the next attempt, or `again`.

    Args:
        source: The nearer tier.
        target: The farther one.
        writer: Commits there.
        clean: Called with each commit there: what is too old may go.
        onward: Called with each commit there: it may be copied farther.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        writer: CommitWriter,
        clean: Callable[[Commit], None],
        onward: Callable[[Commit], None],
    ) -> None:
        self._source = source
        self._target = target
        self._writer = writer
        self._clean = clean
        self._onward = onward
        self._copier = Copier(source, target)
        self._fresh = True
        self._changed = threading.Condition()
        self._wanted: Commit | None = None
        self._copying: Commit | None = None
        self._owed: Commit | None = None
        self._busy = False
        self._arrived: Commit | None = None
        self._failure: Exception | None = None

    def go_back(self) -> None:
        """The writer goes on from another commit; nothing is being copied."""
        self._fresh, self._owed = True, None

    def offer(self, commit: Commit) -> None:
        """Copy a snapshot as soon as the one under way is copied, unless a newer one is offered by then."""
        with self._changed:
            self._owed = None
            if self._busy:
                self._wanted = commit
                return
            self._busy, self._copying = True, commit  # from now on, not only once the thread has begun
            name = f"copy from {self._source.url} to {self._target.url}"
            threading.Thread(target=self._run, args=(commit,), name=name).start()

    def again(self) -> None:
        """Try once more what failed last, where that was told and nothing was copied since."""
        with self._changed:
            owed = None if self._failure is not None else self._owed
        if owed is not None:
            self.offer(owed)

    @property
    def held(self) -> int | None:
        """The number of the snapshot that is being copied, in the nearer tier."""
        with self._changed:
            return None if self._copying is None else self._copying.sequence

    def wait(self, timeout: float) -> bool:
        """Wait until nothing is left to copy, so many seconds at most; whether nothing is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout)

    def take(self) -> Outcome:
        """What came of the attempts since this was last asked."""
        with self._changed:
            outcome = Outcome(self._arrived, self._failure)
            self._arrived = self._failure = None
            return outcome

    def _run(self, first: Commit) -> None:
        commit: Commit | None = first
        while commit is not None:
            try:
                copied = self._copy(commit)
                with self._changed:
                    self._arrived, self._failure = copied, None
                self._onward(copied)
                self._clean(copied)
            except Exception as error:
                self._fail(commit, error)
            commit = self._next()

    def _next(self) -> Commit | None:
        with self._changed:
            self._copying, self._wanted = self._wanted, None
            self._busy = self._copying is not None
            self._changed.notify_all()
            return self._copying

    def _fail(self, commit: Commit, error: Exception) -> None:
        with self._changed:
            self._failure = self._told(commit, error)
            if self._wanted is None:
                self._owed = commit

    def _told(self, commit: Commit, error: Exception) -> Exception:
        if not isinstance(error, CheckpointError):
            return error
        kind = WriterFenced if isinstance(error, WriterFenced) else CheckpointWriteError
        told = kind(
            f"update {commit.update} is saved in {self._source.url} and was not copied to {self._target.url}: {error}"
        )
        told.__cause__ = error
        return told

    def _copy(self, commit: Commit) -> Commit:
        if self._fresh:
            present = self._go_on(commit)
            self._fresh = False
            if present is not None:
                return present
        try:
            parts = self._copier.copy(commit)
        except Exception:
            self._discard()
            raise
        try:
            copied = self._writer.publish(
                Draft(
                    reason=commit.reason,
                    clock=commit.clock,
                    metrics=commit.metrics,
                    world_size=commit.world_size,
                    captured=commit.captured,
                    parts=parts,
                    not_captured=commit.not_captured,
                    created=commit.created,
                )
            )
        except StoreFull:  # anything else may yet turn out to be a commit
            self._discard()
            raise
        self._copier.committed()
        return copied

    def _go_on(self, commit: Commit) -> Commit | None:
        """Rely on what the target's present snapshot has; that snapshot, where it is the one to be copied."""
        present = self._writer.parent
        try:
            self._copier.go_on_from(None if self._writer.left_behind else present)
            if present is not None and present.update == commit.update and self._copier.is_copied(commit, present):
                return present
        except CheckpointError as error:
            log.warning("update %d is copied to %s as a whole: %s", commit.update, self._target.url, error)
        return None

    def _discard(self) -> None:
        try:
            if self._writer.holds():
                self._copier.discard()
        except CheckpointError as error:
            log.warning("%s: what a copy that failed left behind stays for now: %s", self._target.url, error)
