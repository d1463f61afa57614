"""Snapshots of a run: save, restore, keep what is worth keeping."""

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch.distributed as dist

from gradwire.checkpoint.background import Background, Saving, Stage
from gradwire.checkpoint.branches import Found
from gradwire.checkpoint.commit import Commit, Reason
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.journal_writer import Durability, JournalWriter
from gradwire.checkpoint.journals import Journals
from gradwire.checkpoint.mirror import Mirror
from gradwire.checkpoint.policy import Policy, Standing
from gradwire.checkpoint.ranks import Ranks, raising
from gradwire.checkpoint.recovery import Recovery
from gradwire.checkpoint.restoring import Restorer, load_everything, load_state
from gradwire.checkpoint.retention import Retention
from gradwire.checkpoint.saving import Request, Saver
from gradwire.checkpoint.sharded import Wanted
from gradwire.checkpoint.state import State
from gradwire.checkpoint.tiers import Tiers, open_tiers


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
        tiers: URLs of nearer stores, nearest first. Snapshots are saved into the nearest, and from there copied to the
            others and to `url` beside training; `memory` is a folder in the memory of this host.

    Raises:
        StoreError: a URL cannot be a store.
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
        tiers: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        retention = Retention(keep_last, keep_best, best, keep_every)
        stores, in_memory = open_tiers(os.fspath(url), [os.fspath(tier) for tier in tiers])
        identity = writer or f"{socket.gethostname()}:{os.getpid()}"
        self._ranks = Ranks(group)
        self._tiers = Tiers(stores, identity, retention, keep_journal, in_memory)
        self._log = CommitLog(self._tiers.last)
        self._saver = Saver(stores[0], self._tiers, self._tiers.cleaner)
        self._mirror = Mirror(self._tiers.hops, self._ranks, policy, self._saver.begin_anew)
        self._background = Background(self._saver, self._ranks, stage, policy, self._mirror.answer)
        self._restorer = Restorer(stores, self._ranks)
        self._journals = Journals(self._tiers, self._mirror, self._restorer, self._ranks)

    def save(
        self,
        state: State,
        clock: Mapping[str, int | float],
        metrics: Mapping[str, float] | None = None,
        *,
        reason: Reason = "interval",
    ) -> Commit:
        """Save a snapshot; returns once it is durable, in the last tier. All ranks call it.

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
        self._background.settle()
        self._mirror.answer(quiet=True)
        commit = self._background.save(state, Request(dict(clock), dict(metrics or {}), reason))
        self._mirror.finish()
        return self._mirror.arrived or commit

    def start(
        self,
        state: State,
        clock: Mapping[str, int | float],
        metrics: Mapping[str, float] | None = None,
        *,
        reason: Reason = "interval",
    ) -> Saving:
        """Begin a snapshot; returns once the state may change again. All ranks call it; arguments as in `save`.

        One snapshot is under way at a time: this waits until the one before is in the nearest tier, and answers for its
        failure, and for one that was not copied onward, by the policy.
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
        return self._background.standing.joined(self._mirror.standing)

    @property
    def durable(self) -> Commit | None:
        """The newest snapshot in the last tier that this run has saved since it last restored one.

        With several tiers this is what the last `start`, `save` or `close` has found, the same on every rank.
        """
        return self._mirror.arrived if self._tiers.hops else self._background.newest

    def take_over(self, state: State) -> None:
        """Before training, where there are several tiers: look for room in the nearest, claim all of them, and have
        what was restored from a nearer one copied onward. All ranks call it.

        Raises:
            CheckpointWriteError: there is no room for two snapshots; whatever the policy.
            WriterFenced: another writer has taken a tier over.
            StoreError: a tier cannot be written, or is not the same place on all ranks.
        """
        if self._tiers.hops:
            self._saver.check_room(self._ranks, state, copies=2)
            self._claim()

    def _claim(self) -> None:
        raising(lambda: self._tiers.show(self._ranks, self._ranks.on_first(self._tiers.claim)))

    def close(self) -> None:
        """Wait until the last snapshot is in the last tier, and free what was kept for the next. All ranks call it.

        Raises:
            CheckpointError: as `start`; also where the last snapshot did not get to the last tier in as many attempts
                as the policy forgives.
        """
        self._background.close()
        self._mirror.finish(patient=True)

    def free(self) -> None:
        """After the end of a run: give back what a tier takes of the host's memory, once the last tier has everything.

        All ranks call it.

        Raises:
            CheckpointError: as `close`; nothing is given back then.
        """
        self.close()
        if self._ranks.rank == 0:
            self._tiers.free()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._background.close(quiet=True)
            self._mirror.settle()

    def restore(self, ref: int | Literal["latest"] = "latest", wanted: Wanted | None = None) -> tuple[State, Commit]:
        """Read a snapshot, every byte verified; later saves continue from it. All ranks call it.

        Args:
            ref: An update, or `latest`: the newest whole one. Damaged newer ones are logged and listed in `damaged`.
            wanted: Which box this rank needs of a tensor that was saved in slices: a `Cut` takes its place then, and
                what others need is not read here. All of it where None.

        Raises:
            NoCheckpoint: there is no snapshot, or none of that update.
            DamagedCheckpoint: the one asked for is damaged, or all are.
            WorldSizeMismatch: ranks had state of their own, and there were more or fewer of them.
            UnsupportedFormat: the store was written by a newer version.
            StateTooLarge: it does not fit into memory.
            StoreError: the store cannot be read.
        """
        self._settle()
        state, found = self._restorer.restore(
            ref, lambda store, commit: load_state(store, commit, self._ranks.rank, self._ranks.size, wanted)
        )
        self._continue_from(found)
        return state, found.commit

    def restore_resized(
        self, ref: int | Literal["latest"] = "latest", wanted: Wanted | None = None
    ) -> tuple[dict[str, Any], list[dict[str, Any]], Commit]:
        """Read a snapshot at any number of ranks: the shared state, and the own state of every rank that saved.

        Arguments as in `restore`.

        Raises:
            CheckpointError: as `restore`, less WorldSizeMismatch.
        """
        self._settle()
        (shared, locals_), found = self._restorer.restore(
            ref, lambda store, commit: load_everything(store, commit, wanted)
        )
        self._continue_from(found)
        return shared, locals_, found.commit

    @property
    def ranks(self) -> Ranks:
        """Who saves and restores together."""
        return self._ranks

    def _settle(self) -> None:
        self._background.settle(quiet=True)
        self._mirror.settle()

    def _continue_from(self, found: Found) -> None:
        self._mirror.arrived = self._background.newest = None
        self._tiers.continue_from(found, self._restorer.lines)
        if found.tier == 0:
            self._saver.continue_from(self._ranks, found.commit)
        else:
            self._saver.begin_anew()

    def base_of(self, update: int) -> int:
        """The update of the newest snapshot from which the journal leads to an update, or that is of it. All ranks.

        Raises:
            NoCheckpoint: there is none.
            StoreError: the store cannot be read.
        """
        return self._journals.base_of(update)

    def reach(self) -> list[tuple[int, int]]:
        """The snapshots of the present branch, newest first, each with the last update that the journal leads to.

        That is its own where nothing was journalled. All ranks call it.

        Raises:
            StoreError: the store cannot be read.
        """
        return self._journals.reach()

    def recovery(self, commit: Commit) -> Recovery:
        """What was journalled after a snapshot that was restored. All ranks call it, and step through it together."""
        return self._journals.recovery(commit)

    def continue_at(self, recovery: Recovery, update: int) -> None:
        """Make later saves and journals continue from a journalled update that was replayed. All ranks call it."""
        self._journals.continue_at(recovery, update)

    def journal(
        self, base: Commit, after: int, durability: Durability = "interval", interval: float = 5.0
    ) -> JournalWriter:
        """A journal of what follows; all ranks call it.

        With several tiers this may wait until what was restored is in the last one, which has the journal.

        Args:
            base: The snapshot that the run restored or has saved: what `restore`, `save` or `durable` gave.
            after: The update that the run is at: that of the base, or what was replayed on it.
            durability: As in JournalWriter, like `interval`.
            interval: In seconds.

        Raises:
            WriterFenced: another writer has taken the store over.
            StoreError: the store cannot be written.
        """
        self._claim()
        home, epoch = self._journals.home(base, after)
        ranks = self._ranks
        return JournalWriter(self._tiers.last, home, epoch, ranks.rank, ranks.size, durability, interval, after=after)

    @property
    def damaged(self) -> tuple[str, ...]:
        """What the last restore found damaged, by name."""
        return self._restorer.damaged

    def commits(self) -> list[Commit]:
        """The last tier's newest commit and those that led to it, oldest first. For one rank: nothing is exchanged.

        Raises:
            UnsupportedFormat: the store was written by a newer version.
            StoreError: the store cannot be read.
        """
        return list(self._log.history().ancestry)

    def latest(self) -> Commit | None:
        """The last tier's newest commit, not verified; None where it is empty. For one rank. Raises as `commits`."""
        return self._log.history().newest

    def writers(self) -> list[str]:
        """Who took the last tier over, by the names that they gave themselves, the newest last. For one rank.

        Raises:
            CheckpointError: as `commits`.
        """
        return [epoch.writer.identity for epoch in self._log.history().epochs]

    def at(self, update: int) -> Commit:
        """The last tier's commit of an update, not verified. For one rank.

        Raises:
            NoCheckpoint: there is none.
            DamagedCheckpoint: there is none, and there are commits that cannot be read.
            CheckpointError: as `commits`.
        """
        return self._log.history().at(update)
