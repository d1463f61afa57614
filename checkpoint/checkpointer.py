"""Snapshots of a run: save, restore, keep what is worth keeping."""

import os
import socket
from collections.abc import Mapping
from typing import Any, Literal

import torch.distributed as dist

from gradwire.checkpoint.commit import Commit, Reason
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.epochs import CommitWriter
from gradwire.checkpoint.ranks import Ranks
from gradwire.checkpoint.restoring import Restorer, load_everything, load_state
from gradwire.checkpoint.retention import Pruner, Retention
from gradwire.checkpoint.saving import Saver
from gradwire.checkpoint.state import State
from gradwire.checkpoint.store import Store


class Checkpointer:
    """Saves and restores the state of a run in a store that survives a kill at any moment.

    A snapshot counts once its commit exists, which is written last; until then the one before is the newest. One writer
    at a time: the first save takes the store over, and a writer that was forgotten elsewhere cannot commit any more.

    Args:
        url: The store: a local path or any fsspec URL with create-if-absent (file, memory, s3, gs, abfs).
        keep_last: Newest snapshots kept.
        keep_best: Best snapshots kept beside them.
        best: The metric that tells the best; lower is better.
        writer: Names this writer for people; host and process where None.
        group: A torch.distributed process group whose ranks save and restore together; None for one process.

    Raises:
        StoreError: the URL cannot be a store.
        ValueError: nothing would be kept.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        keep_last: int = 3,
        keep_best: int = 1,
        best: str = "eval/loss",
        writer: str | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        retention = Retention(keep_last, keep_best, best)
        self._store = Store.open(os.fspath(url))
        self._ranks = Ranks(group)
        self._log = CommitLog(self._store)
        self._writer = CommitWriter(self._store, writer or f"{socket.gethostname()}:{os.getpid()}")
        self._saver = Saver(self._store, self._ranks, self._writer, Pruner(self._store, retention))
        self._restorer = Restorer(self._store, self._ranks)

    def save(
        self,
        state: State,
        clock: Mapping[str, int | float],
        metrics: Mapping[str, float] | None = None,
        *,
        reason: Reason = "interval",
    ) -> Commit:
        """Save a snapshot; returns once it is durable. All ranks call it.

        Args:
            state: What is saved; `shared` is taken from rank 0.
            clock: Where the run is: `updates` (whole number) and whatever else is counted.
            metrics: What was measured at this update, for keeping the best.
            reason: Why it is saved.

        Raises:
            CheckpointWriteError: some rank could not write its part (the rank and its reason are named); on every rank.
                The last commit stays.
            WriterFenced: another writer has taken the store over.
            CheckpointError: a rank no longer answers.
        """
        return self._saver.save(state, clock, metrics or {}, reason)

    def restore(self, ref: int | Literal["latest"] = "latest") -> tuple[State, Commit]:
        """Read a snapshot, every byte verified; later saves continue from it. All ranks call it.

        Args:
            ref: An update, or `latest`: the newest whole one. Damaged newer ones are logged and listed in `damaged`.

        Raises:
            NoCheckpoint: there is no snapshot, or none of that update.
            DamagedCheckpoint: the one asked for is damaged, or all are.
            WorldSizeMismatch: ranks had state of their own, and there were more or fewer of them.
            UnsupportedFormat: the store was written by a newer version.
            StateTooLarge: it does not fit into memory.
            StoreError: the store cannot be read.
        """
        state, commit = self._restorer.restore(
            ref, lambda commit: load_state(self._store, commit, self._ranks.rank, self._ranks.size)
        )
        self._writer.continue_from(commit)
        self._saver.continue_from(commit)
        return state, commit

    def restore_resized(
        self, ref: int | Literal["latest"] = "latest"
    ) -> tuple[dict[str, Any], list[dict[str, Any]], Commit]:
        """Read a snapshot at any number of ranks: the shared state, and the own state of every rank that saved.

        Raises:
            CheckpointError: as `restore`, less WorldSizeMismatch.
        """
        (shared, locals_), commit = self._restorer.restore(ref, lambda commit: load_everything(self._store, commit))
        self._writer.continue_from(commit)
        self._saver.continue_from(commit)
        return shared, locals_, commit

    @property
    def damaged(self) -> tuple[str, ...]:
        """What the last restore found damaged, by name."""
        return self._restorer.damaged

    def commits(self) -> list[Commit]:
        """The newest commit and those that led to it, oldest first. For one rank: nothing is exchanged.

        Raises:
            UnsupportedFormat: the store was written by a newer version.
            StoreError: the store cannot be read.
        """
        return list(self._log.history().ancestry)

    def latest(self) -> Commit | None:
        """The newest commit, not verified; None in an empty store. For one rank. Raises as `commits` does."""
        return self._log.history().newest

    def at(self, update: int) -> Commit:
        """The commit of an update, not verified. For one rank.

        Raises:
            NoCheckpoint: there is none.
            DamagedCheckpoint: there is none, and there are commits that cannot be read.
            CheckpointError: as `commits`.
        """
        return self._log.history().at(update)
