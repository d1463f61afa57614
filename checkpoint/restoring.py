"""Restoring together: the newest snapshot that is whole on every rank, or exactly the one asked for."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gradwire.checkpoint.branches import Found, Line, Ref, candidates, lines
from gradwire.checkpoint.commit import Commit, parse_commit
from gradwire.checkpoint.commits import CommitLog, History
from gradwire.checkpoint.errors import CheckpointError, DamagedCheckpoint, WorldSizeMismatch
from gradwire.checkpoint.journal_reader import journalled_epochs
from gradwire.checkpoint.known import Known
from gradwire.checkpoint.loading import load_whole_tree
from gradwire.checkpoint.ranks import Ranks, raising
from gradwire.checkpoint.sharded import Wanted
from gradwire.checkpoint.snapshot import Part, local_places, read_parts, shared_places
from gradwire.checkpoint.state import State
from gradwire.checkpoint.store import Store

log = logging.getLogger(__name__)
Loaded = TypeVar("Loaded")


class Restorer:
    """Finds and reads snapshots, with all ranks of a group; only rank 0 lists stores.

    Args:
        stores: Where they are: the tiers of a run, nearest first, or one store.
        ranks: Who restores.
    """

    def __init__(self, stores: Sequence[Store], ranks: Ranks) -> None:
        self._stores = stores
        self._ranks = ranks
        self._logs = [CommitLog(store) for store in stores]
        self._failed: list[Store] = []
        self.lines: list[Line] = []  # on rank 0: the commits of each tier that counted in the last restore
        self.damaged: tuple[str, ...] = ()

    def restore(self, ref: Ref, load: Callable[[Store, Commit], Loaded]) -> tuple[Loaded, Found]:
        """What `load` reads of a snapshot, on every rank; of one that several tiers hold, from the nearest that can.

        Args:
            ref: An update, or `latest` for the newest whole one.
            load: Called with a store and a commit on every rank; raises DamagedCheckpoint where it is not whole.

        Raises:
            NoCheckpoint: there is no snapshot, or none of that update.
            DamagedCheckpoint: the one asked for is damaged, or all are.
            CheckpointError: whatever else `load` raises.
        """
        self.damaged = ()
        self._failed = []
        skipped: set[tuple[int, int]] = set()
        while True:
            found = self._choose(ref, skipped)
            try:
                loaded = self._load(found, load)
            except DamagedCheckpoint as error:
                skipped.add((found.tier, found.commit.sequence))
                self._report(found, error)
            else:
                self._tell(found)
                return loaded, found

    def histories(self) -> list[History]:
        """Of all stores, as they are now. On one rank.

        Raises:
            UnsupportedFormat, StoreError: as CommitLog.history.
        """
        return [log.history() for log in self._logs]

    def journalled(self) -> frozenset[int]:
        """Of several stores, the epochs that have a journal in the last one; as they are now. On one rank.

        Raises:
            StoreError: it could not be listed.
        """
        return journalled_epochs(self._stores[-1]) if len(self._stores) > 1 else frozenset()

    def _choose(self, ref: Ref, skipped: set[tuple[int, int]]) -> Found:
        def choose() -> tuple[int, int, str, tuple[str, ...]]:
            histories = self.histories()
            for history in histories:
                for error in history.damaged.values():
                    self._note(str(error))
            journalled = self.journalled()
            self.lines = lines(histories, journalled)
            for tier, commit in ((each.tier, each.commit) for each in candidates(histories, ref, journalled)):
                if (tier, commit.sequence) not in skipped:
                    return tier, commit.sequence, commit.to_bytes().decode("ascii"), self.damaged
            what = "whole snapshot" if ref == "latest" else f"whole snapshot of update {ref}"
            advice = self._advice() if ref == "latest" else f"Restore another update; {self._advice()}"
            raise DamagedCheckpoint(f"{self._urls} has no {what}: {'; '.join(self.damaged)}. {advice}")

        tier, sequence, text, damaged = raising(lambda: self._ranks.on_first(choose))
        self.damaged = tuple(damaged)
        where = f"{self._stores[tier].url}: commit {sequence}"
        return Found(tier, parse_commit(text.encode("ascii"), sequence, where))

    def _load(self, found: Found, load: Callable[[Store, Commit], Loaded]) -> Loaded:
        loaded: list[Loaded] = []
        store = self._stores[found.tier]
        raising(lambda: self._ranks.together(lambda: loaded.append(load(store, found.commit))))
        return loaded[0]

    def _report(self, found: Found, error: DamagedCheckpoint) -> None:
        commit = found.commit
        if not raising(lambda: self._ranks.on_first(lambda: self._logs[found.tier].holds(commit.sequence))):
            return  # retention removed it while it was read: not damage
        self._failed.append(self._stores[found.tier])
        self._note(f"the snapshot of update {commit.update} ({commit.name}) is damaged: {error}")

    @property
    def _urls(self) -> str:
        return ", ".join(store.url for store in self._stores)

    def _advice(self) -> str:
        return f"`gradwire checkpoint fsck {self._stores[-1].url}` tells what is lost and what is whole"

    def _tell(self, found: Found) -> None:
        if not self.damaged or self._ranks.rank != 0:
            return
        store = self._stores[found.tier]
        other = [each.url for each in dict.fromkeys(self._failed) if each is not store]
        instead = f" in place of {', '.join(other)}" if other else ""
        log.warning("%s: restored update %d%s", store.url, found.commit.update, instead)

    def _note(self, message: str) -> None:
        if message not in self.damaged:
            self.damaged = (*self.damaged, message)
            if self._ranks.rank == 0:
                log.warning("%s", message)


def load_state(store: Store, commit: Commit, rank: int, world_size: int, wanted: Wanted | None = None) -> State:
    """The shared state, of tensors in slices what is wanted, and the rank's own.

    Raises:
        WorldSizeMismatch: ranks had state of their own, and there were more or fewer of them.
        CheckpointError: as `load_tree` and `read_part`.
    """
    if commit.world_size != world_size and commit.captured["local"]:
        raise WorldSizeMismatch(
            f"{store.url}: update {commit.update} was saved by {commit.world_size} ranks, each with state of its own "
            f"({', '.join(commit.captured['local'])}), and is restored by {world_size}: use restore_resized, which "
            "hands out the state of all ranks"
        )
    parts = read_parts(store, commit.parts)
    local = load_local(store, commit, parts[rank]) if commit.world_size == world_size else {}
    return State(load_shared(store, commit, parts, wanted), local)


def load_shared(store: Store, commit: Commit, parts: Sequence[Part], wanted: Wanted | None = None) -> dict[str, Any]:
    """The shared state, from the parts of all ranks; of tensors in slices what is wanted."""
    where = f"{store.url}: update {commit.update}, shared"
    return load_whole_tree(store, shared_places(parts, where), parts[0].shared, where, wanted)


def load_local(store: Store, commit: Commit, part: Part) -> dict[str, Any]:
    """A rank's own state."""
    where = f"{store.url}: {commit.parts[part.rank].name}, local"
    return load_whole_tree(store, local_places(part), part.local, where)


def load_everything(
    store: Store, commit: Commit, wanted: Wanted | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The shared state, of tensors in slices what is wanted, and the own state of every rank that saved."""
    parts = read_parts(store, commit.parts)
    return load_shared(store, commit, parts, wanted), [load_local(store, commit, part) for part in parts]


def recall(known: Known, store: Store, commit: Commit, rank: int, world_size: int) -> None:
    """Know what the restored snapshot has in the store: what this rank wrote of it, or all of it if ranks have become
    more or fewer. Should it be gone meanwhile, nothing is known."""
    refs = (commit.parts[rank],) if commit.world_size == world_size else commit.parts
    try:
        known.replace(read_parts(store, refs))
    except CheckpointError as error:
        known.replace([])
        log.warning("the next snapshot is written as a whole: %s", error)
