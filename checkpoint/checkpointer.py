"""Snapshots of a run: save, restore, keep what is worth keeping."""

import os
import socket
from collections.abc import Mapping
from typing import Any, Literal

import torch.distributed as dist

from gradwire.checkpoint.background import Background, Saving, Stage
from gradwire.checkpoint.commit import Commit, Reason
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.epochs import CommitWriter
from gradwire.checkpoint.errors import NoCheckpoint
from gradwire.checkpoint.history import read_log, spans
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.journal_writer import Durability, JournalWriter
from gradwire.checkpoint.policy import Policy, Standing
from gradwire.checkpoint.ranks import Ranks, raising
from gradwire.checkpoint.recovery import Recovery
from gradwire.checkpoint.restoring import Restorer, load_everything, load_state
from gradwire.checkpoint.retention import Pruner, Retention
from gradwire.checkpoint.saving import Request, Saver
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
        stage: What `start` does first: `copy` copies the state, and training goes on while the copy is written; with
            `none` it takes no memory and returns when the snapshot is durable.
        policy: What becomes of a run whose snapshots, begun with `start`, fail.
        keep_every: Updates between snapshots that stay for good, where not None.
        keep_journal: Newest snapshots of which the journal stays.

    Raises:
        StoreError: the URL cannot be a store.
        ValueError: nothing would be kept, or there is no such stage.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        keep_last: int = 3,
        keep_best: int = 1,
        best: str = "eval/loss",
        writer: str | None = None,
        group: dist.ProcessGroup | None = None,
        stage: Stage = "copy",
        policy: Policy = Policy(),  # noqa: B008 - frozen
        keep_every: int | None = None,
        keep_journal: int = 2,
    ) -> None:
        retention = Retention(keep_last, keep_best, best, keep_every)
        self._store = Store.open(os.fspath(url))
        self._ranks = Ranks(group)
        self._log = CommitLog(self._store)
        self._writer = CommitWriter(self._store, writer or f"{socket.gethostname()}:{os.getpid()}")
        self._saver = Saver(self._store, self._writer, Pruner(self._store, retention), keep_journal)
        self._background = Background(self._saver, self._ranks, stage, policy)
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
        return self._background.save(state, Request(dict(clock), dict(metrics or {}), reason))

    def start(
        self,
        state: State,
        clock: Mapping[str, int | float],
        metrics: Mapping[str, float] | None = None,
        *,
        reason: Reason = "interval",
    ) -> Saving:
        """Begin a snapshot; returns once the state may change again. All ranks call it; arguments as in `save`.

        One snapshot is under way at a time: this waits for the one before, and answers for its failure by the policy.
        With CUDA, tensors are copied as the current stream leaves them, and it goes on after the copy.

        Raises:
            CheckpointWriteError: the snapshot before failed, on every rank, and the policy does not let the run go on.
                The last commit stays.
            WriterFenced: another writer has taken the store over.
            CheckpointError: a rank no longer answers.
        """
        return self._background.start(state, Request(dict(clock), dict(metrics or {}), reason))

    @property
    def standing(self) -> Standing:
        """What failed snapshots call for; the same on every rank after each `start`, `save` and `restore`."""
        return self._background.standing

    def close(self) -> None:
        """Wait for the snapshot under way, and free what was kept for the next one. All ranks call it.

        Raises:
            CheckpointError: as `start`.
        """
        self._background.close()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._background.close(quiet=kind is not None)

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
        self._background.settle(quiet=True)
        state, commit = self._restorer.restore(
            ref, lambda commit: load_state(self._store, commit, self._ranks.rank, self._ranks.size)
        )
        self._writer.continue_from(commit)
        self._saver.continue_from(self._ranks, commit)
        return state, commit

    def restore_resized(
        self, ref: int | Literal["latest"] = "latest"
    ) -> tuple[dict[str, Any], list[dict[str, Any]], Commit]:
        """Read a snapshot at any number of ranks: the shared state, and the own state of every rank that saved.

        Raises:
            CheckpointError: as `restore`, less WorldSizeMismatch.
        """
        self._background.settle(quiet=True)
        (shared, locals_), commit = self._restorer.restore(ref, lambda commit: load_everything(self._store, commit))
        self._writer.continue_from(commit)
        self._saver.continue_from(self._ranks, commit)
        return shared, locals_, commit

    def base_of(self, update: int) -> int:
        """The update of the newest snapshot from which the journal leads to an update, or that is of it. All ranks.

        Raises:
            NoCheckpoint: there is none.
            StoreError: the store cannot be read.
        """
        return int(raising(lambda: self._ranks.on_first(lambda: self._base_of(update))))

    def _base_of(self, update: int) -> int:
        for commit in reversed(self._log.history().ancestry):
            if commit.update <= update <= commit.update + len(JournalReader(self._store, commit).names):
                return commit.update
        updates = read_log(self._store).updates
        raise NoCheckpoint(f"{self._store.url} cannot restore update {update}; it can restore {spans(updates)}")

    def reach(self) -> list[tuple[int, int]]:
        """The snapshots of the present branch, newest first, each with the last update that the journal leads to.

        That is its own where nothing was journalled. All ranks call it.

        Raises:
            StoreError: the store cannot be read.
        """
        found = raising(lambda: self._ranks.on_first(self._reach))
        return [(int(update), int(last)) for update, last in found]

    def _reach(self) -> list[tuple[int, int]]:
        return [
            (commit.update, commit.update + len(JournalReader(self._store, commit).names))
            for commit in reversed(self._log.history().ancestry)
        ]

    def recovery(self, commit: Commit) -> Recovery:
        """What was journalled after a snapshot that was restored. All ranks call it, and step through it together."""
        return Recovery(self._store, self._ranks, commit)

    def continue_at(self, recovery: Recovery, update: int) -> None:
        """Make later saves and journals continue from a journalled update that was replayed. All ranks call it."""
        self._writer.continue_from(recovery.base, recovery.seal(update))

    def journal(
        self, base: Commit, after: int, durability: Durability = "interval", interval: float = 5.0
    ) -> JournalWriter:
        """A journal of what follows; all ranks call it.

        Args:
            base: The snapshot that the run restored or has saved.
            after: The update that the run is at: that of the base, or what was replayed on it.
            durability: As in JournalWriter, like `interval`.
            interval: In seconds.

        Raises:
            WriterFenced: another writer has taken the store over.
            StoreError: the store cannot be written.
        """

        def claim() -> int:
            self._writer.claim()
            return self._writer.epoch

        epoch = raising(lambda: self._ranks.on_first(claim))
        ranks = self._ranks
        return JournalWriter(self._store, base, epoch, ranks.rank, ranks.size, durability, interval, after=after)

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
