"""Restoring together: the newest snapshot that is whole on every rank, or exactly the one asked for."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from gradwire.checkpoint.commit import Commit, parse_entry
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.errors import CheckpointError, DamagedCheckpoint, WorldSizeMismatch
from gradwire.checkpoint.known import Known
from gradwire.checkpoint.ranks import Ranks, raising
from gradwire.checkpoint.snapshot import Part, load_tree, local_places, read_parts, shared_places
from gradwire.checkpoint.state import State
from gradwire.checkpoint.store import Store

log = logging.getLogger(__name__)
Loaded = TypeVar("Loaded")
Ref = int | Literal["latest"]


class Restorer:
    """Finds and reads snapshots, with all ranks of a group; only rank 0 lists the store.

    Args:
        store: Where they are.
        ranks: Who restores.
    """

    def __init__(self, store: Store, ranks: Ranks) -> None:
        self._store = store
        self._ranks = ranks
        self._log = CommitLog(store)
        self.damaged: tuple[str, ...] = ()

    def restore(self, ref: Ref, load: Callable[[Commit], Loaded]) -> tuple[Loaded, Commit]:
        """What `load` reads of a snapshot, on every rank.

        Args:
            ref: An update, or `latest` for the newest whole one.
            load: Called with a commit on every rank; raises DamagedCheckpoint where it is not whole.

        Raises:
            NoCheckpoint: there is no snapshot, or none of that update.
            DamagedCheckpoint: the one asked for is damaged, or all are.
            CheckpointError: whatever else `load` raises.
        """
        self.damaged = ()
        skipped: set[int] = set()
        while True:
            commit = self._choose(ref, skipped)
            try:
                loaded = self._load(commit, load)
            except DamagedCheckpoint as error:
                skipped.add(commit.sequence)
                self._report(commit, error, exact=ref != "latest")
            else:
                self._tell(commit)
                return loaded, commit

    def _choose(self, ref: Ref, skipped: set[int]) -> Commit:
        def choose() -> tuple[int, str, tuple[str, ...]]:
            history = self._log.history()
            for error in history.damaged.values():
                self._note(str(error))
            candidates = (history.at(ref),) if isinstance(ref, int) else history.candidates()
            for commit in candidates:
                if commit.sequence not in skipped:
                    return commit.sequence, commit.to_bytes().decode("ascii"), self.damaged
            raise DamagedCheckpoint(
                f"{self._store.url} has no whole snapshot: {'; '.join(self.damaged)}. {self._advice()}"
            )

        sequence, text, damaged = raising(lambda: self._ranks.on_first(choose))
        self.damaged = tuple(damaged)
        entry = parse_entry(text.encode("ascii"), sequence, f"{self._store.url}: commit {sequence}")
        if not isinstance(entry, Commit):
            raise DamagedCheckpoint(f"{self._store.url}: rank 0 chose something else than a commit")
        return entry

    def _load(self, commit: Commit, load: Callable[[Commit], Loaded]) -> Loaded:
        loaded: list[Loaded] = []
        raising(lambda: self._ranks.together(lambda: loaded.append(load(commit))))
        return loaded[0]

    def _report(self, commit: Commit, error: DamagedCheckpoint, *, exact: bool) -> None:
        if not raising(lambda: self._ranks.on_first(lambda: self._log.holds(commit.sequence))):
            return  # retention removed it while it was read: not damage
        message = f"the snapshot of update {commit.update} ({commit.name}) is damaged: {error}"
        if exact:
            raise DamagedCheckpoint(f"{message}. Restore another update; {self._advice()}") from error
        self._note(message)

    def _advice(self) -> str:
        return f"`gradwire checkpoint fsck {self._store.url}` tells what is lost and what is whole"

    def _tell(self, commit: Commit) -> None:
        if self.damaged and self._ranks.rank == 0:
            log.warning("%s: restored update %d", self._store.url, commit.update)

    def _note(self, message: str) -> None:
        if message not in self.damaged:
            self.damaged = (*self.damaged, message)
            if self._ranks.rank == 0:
                log.warning("%s", message)


def load_state(store: Store, commit: Commit, rank: int, world_size: int) -> State:
    """The shared state and the rank's own.

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
    return State(load_shared(store, commit, parts), local)


def load_shared(store: Store, commit: Commit, parts: Sequence[Part]) -> dict[str, Any]:
    """The shared state, from the parts of all ranks."""
    where = f"{store.url}: update {commit.update}, shared"
    return _as_dict(load_tree(store, shared_places(parts, where), parts[0].shared, where))


def load_local(store: Store, commit: Commit, part: Part) -> dict[str, Any]:
    """A rank's own state."""
    where = f"{store.url}: {commit.parts[part.rank].name}, local"
    return _as_dict(load_tree(store, local_places(part), part.local, where))


def _as_dict(loaded: Any) -> dict[str, Any]:
    if not isinstance(loaded, dict):
        raise DamagedCheckpoint("a part's tree is not a dict")
    return loaded


def load_everything(store: Store, commit: Commit) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The shared state and the own state of every rank that saved."""
    parts = read_parts(store, commit.parts)
    return load_shared(store, commit, parts), [load_local(store, commit, part) for part in parts]


def recall(known: Known, store: Store, commit: Commit, rank: int, world_size: int) -> None:
    """Know what the restored snapshot has in the store: what this rank wrote of it, or all of it if ranks have become
    more or fewer. Should it be gone meanwhile, nothing is known."""
    refs = (commit.parts[rank],) if commit.world_size == world_size else commit.parts
    try:
        known.replace(read_parts(store, refs))
    except CheckpointError as error:
        known.replace([])
        log.warning("the next snapshot is written as a whole: %s", error)
