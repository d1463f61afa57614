"""gradwire.checkpoint's sessions that journal every update and save a snapshot now and then."""

import torch
from torch import Tensor

from benchmarks.checkpoint_faults.contenders import FOLDER, Altered
from benchmarks.checkpoint_faults.disk import Disk
from benchmarks.checkpoint_faults.gradwire_sessions import PLACES, GradwireSession, checked_state
from gradwire.checkpoint import CheckpointError, Commit, NoCheckpoint
from gradwire.checkpoint.blobs import Blob
from gradwire.checkpoint.journal import Entry
from gradwire.checkpoint.journal_writer import JournalWriter
from gradwire.checkpoint.local import LocalObjects

EVERY = 3


class JournalSession(GradwireSession):
    """A process that journals each update with durability `update`, and saves a snapshot at every third.

    A journal that failed is followed by a snapshot, on which the next one begins.
    """

    name = "gradwire, journal"

    _journal: JournalWriter | None = None
    _base: Commit | None = None
    _at = 0

    def save(self, update: int) -> None:
        """Take the updates up to this one; returns when it is durable."""
        with PLACES.installed():
            for following in range(self._at + 1, update + 1):
                self._step(following)

    def restore(self) -> int | None:
        """Restore a snapshot and replay what was journalled on it."""
        self.end()
        with PLACES.installed():
            try:
                state, commit = self.checkpointer.restore()
            except NoCheckpoint:
                return None
            self._at = checked_state(state, commit.update)
            recovery = self.checkpointer.recovery(commit)
            for update, entries in recovery.entries():
                if update != self._at + 1:
                    raise Altered(f"update {update} follows {self._at} in the journal")
                _check_entries(update, entries)
                self._at = update
            self.checkpointer.continue_at(recovery, self._at)
            self._base = commit
        return self._at or None

    def end(self) -> None:
        """End the journal's thread; nothing waits to be written, because each update was waited for."""
        if self._journal is not None:
            self._journal.abandon()
            self._journal = None

    def _step(self, update: int) -> None:
        if self._base is None or (update % EVERY == 0 and self._journal is None):
            self._base = self._snapshot(update)
        else:
            self._append(self._base, update)
            if update % EVERY == 0:
                self._rebase(update)
        self._at = update

    def _append(self, base: Commit, update: int) -> None:
        try:
            if self._journal is None:
                self._journal = self.checkpointer.journal(base, self._at, "update")
            self._journal.append(update, {"update": update, "lr": 0.1 * update}, {"gradient": Blob(gradient(update))})
            self._journal.wait(update)
        except CheckpointError:
            self.end()
            self._base = None  # the next update begins with a snapshot
            self._at = update  # the run goes on all the same
            raise

    def _rebase(self, update: int) -> None:
        assert self._journal is not None
        try:
            self._base = self._snapshot(update)
        except CheckpointError:
            return  # the update itself is in the journal
        self._journal.rebase(self._base)


def gradient(update: int) -> Tensor:
    return torch.arange(100, dtype=torch.float32) * update


def _check_entries(update: int, entries: list[Entry]) -> None:
    entry = entries[0]
    whole = (
        len(entries) == 1
        and dict(entry.scalars) == {"update": update, "lr": 0.1 * update}
        and entry.tensors["gradient"].data.view(torch.float32).equal(gradient(update))
    )
    if not whole:
        raise Altered(f"update {update} came back altered from the journal")


def journal_on_disk(disk: Disk) -> JournalSession:
    return JournalSession(lambda: LocalObjects(FOLDER, disk))
