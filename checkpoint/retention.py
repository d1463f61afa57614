"""Which snapshots stay, and the removal of what no snapshot needs any more."""

import logging
import math
from dataclasses import dataclass

from gradwire.checkpoint.commit import Commit, commit_name
from gradwire.checkpoint.commits import CommitLog, History
from gradwire.checkpoint.errors import DamagedCheckpoint
from gradwire.checkpoint.snapshot import read_part
from gradwire.checkpoint.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retention:
    """What stays: the newest snapshots, the newest of the present branch, and its best by a metric.

    Args:
        keep_last: Newest snapshots kept.
        keep_best: Best snapshots kept beside them.
        best: Name of the metric; lower is better. Snapshots without it, or with NaN, are not among the best.
    """

    keep_last: int
    keep_best: int
    best: str

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, found {self.keep_last}")
        if self.keep_best < 0:
            raise ValueError(f"keep_best must be at least 0, found {self.keep_best}")

    def kept(self, history: History) -> set[int]:
        """Numbers of the commits that stay; among equal metrics the newer ones do."""
        numbers = sorted([commit.sequence for commit in history.commits] + list(history.damaged))
        branch = history.ancestry
        measured = [commit for commit in branch if not math.isnan(commit.metrics.get(self.best, math.nan))]
        ranked = sorted(measured, key=lambda commit: (commit.metrics[self.best], -commit.sequence))
        chosen = (*branch[-self.keep_last :], *ranked[: self.keep_best])
        return {*numbers[-self.keep_last :], *(commit.sequence for commit in chosen)}


class Pruner:
    """Removes commits that do not stay, then parts and packs that no commit names.

    Claims are never removed: they keep writers that were fenced from committing.

    Args:
        store: The store.
        retention: What stays.
    """

    def __init__(self, store: Store, retention: Retention) -> None:
        self._store = store
        self._retention = retention
        self._log = CommitLog(store)
        self._packs_of: dict[str, frozenset[str]] = {}

    def prune(self, newest: int) -> None:
        """Remove what need not stay; for the writer that has just written the commit of number `newest`.

        Objects are listed before the commits are: should another writer have taken over since, nothing is removed,
        because the objects may be its own.

        Raises:
            StoreError: the store did not answer.
        """
        objects = [*self._store.list("parts"), *self._store.list("packs")]
        history = self._log.history()
        if history.last != newest:
            return
        kept = self._retention.kept(history)
        staying = [commit for commit in history.commits if commit.sequence in kept]
        for sequence in sorted({commit.sequence for commit in history.commits} | set(history.damaged)):
            if sequence not in kept:
                self._store.delete(commit_name(sequence))
        if kept & set(history.damaged):
            log.warning("%s: objects are not cleaned up while a damaged commit is among the newest", self._store.url)
            return
        try:
            needed = self._needed(staying)
        except DamagedCheckpoint as error:
            log.warning("%s; objects are not cleaned up while this snapshot is among those kept", error)
            return
        for name in objects:
            if name not in needed:
                self._store.delete(name)

    def _needed(self, commits: list[Commit]) -> set[str]:
        parts = {part.name: part for commit in commits for part in commit.parts}
        for name, part in parts.items():
            if name not in self._packs_of:
                self._packs_of[name] = frozenset(pack.name for pack in read_part(self._store, part).packs)
        self._packs_of = {name: self._packs_of[name] for name in parts}
        return set(parts).union(*self._packs_of.values())
