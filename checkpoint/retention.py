"""Which snapshots stay, and why."""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.commits import History
from gradwire.checkpoint.garbage import Collector, Keeping
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import TagList

log = logging.getLogger(__name__)
_NO_TAGS = TagList((), {})


@dataclass(frozen=True)
class Retention:
    """What stays: the newest snapshots, and of the present branch the newest, the best by a metric, one every so many
    updates; and whatever has a tag.

    Args:
        keep_last: Newest snapshots kept.
        keep_best: Best snapshots kept beside them.
        best: Name of the metric; lower is better. Snapshots without it, or with NaN, are not among the best.
        keep_every: The first snapshot at or after every so many updates is kept; None for no such.
    """

    keep_last: int
    keep_best: int
    best: str
    keep_every: int | None = None

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, found {self.keep_last}")
        if self.keep_best < 0:
            raise ValueError(f"keep_best must be at least 0, found {self.keep_best}")
        if self.keep_every is not None and self.keep_every < 1:
            raise ValueError(f"keep_every must be at least 1, found {self.keep_every}")

    def kept(self, history: History, tags: TagList = _NO_TAGS, verified: int | None = None) -> dict[int, str]:
        """Numbers of the commits that stay, each with the first reason; among equal metrics the newer ones do.

        Args:
            history: All commits.
            tags: All tags. While one of them cannot be read, every commit stays.
            verified: The newest commit that was read back whole, which stays; None where none was.
        """
        branch = history.ancestry
        numbers = sorted([commit.sequence for commit in history.commits] + list(history.damaged))
        reasons: dict[int, str] = {}
        self._note(reasons, numbers[-self.keep_last :], f"among the newest {self.keep_last}")
        self._note(reasons, _sequences(branch[-self.keep_last :]), f"among the newest {self.keep_last} of its branch")
        self._note(reasons, _sequences(self._best(branch)), f"among the best {self.keep_best} by {self.best}")
        self._note(reasons, _sequences(self._steady(branch)), f"kept every {self.keep_every} updates")
        for commit in history.commits:
            if names := tags.names(commit.sequence):
                self._note(reasons, [commit.sequence], f"tagged {', '.join(names)}")
        self._note(reasons, [] if verified is None else [verified], "the last that was read back whole")
        if tags.damaged:
            self._note(reasons, numbers, f"the tag {next(iter(tags.damaged))!r} cannot be read and may mean it")
        return {number: reasons[number] for number in numbers if number in reasons}

    def _best(self, branch: tuple[Commit, ...]) -> list[Commit]:
        measured = [commit for commit in branch if not math.isnan(commit.metrics.get(self.best, math.nan))]
        return sorted(measured, key=lambda commit: (commit.metrics[self.best], -commit.sequence))[: self.keep_best]

    def _steady(self, branch: tuple[Commit, ...]) -> list[Commit]:
        """The first commit of each stretch of `keep_every` updates; removing the others does not change which it is."""
        if self.keep_every is None:
            return []
        first: dict[int, Commit] = {}
        for commit in branch:
            if commit.update >= self.keep_every:
                first.setdefault(commit.update // self.keep_every, commit)
        return list(first.values())

    @staticmethod
    def _note(reasons: dict[int, str], numbers: Iterable[int], reason: str) -> None:
        for number in numbers:
            reasons.setdefault(number, reason)


def _sequences(commits: Iterable[Commit]) -> list[int]:
    return [commit.sequence for commit in commits]


@dataclass(frozen=True)
class KeepAll:
    """Every commit stays; only what no commit needs goes."""

    def kept(self, history: History, tags: TagList = _NO_TAGS, verified: int | None = None) -> dict[int, str]:
        """As Retention.kept."""
        return dict.fromkeys(sorted([*_sequences(history.commits), *history.damaged]), "no retention was asked for")


@dataclass(frozen=True)
class Newest:
    """The newest snapshot stays, and one that is being copied elsewhere.

    Args:
        held: Gives the number of the commit that is being copied; None where none is.
    """

    held: Callable[[], int | None]

    def kept(self, history: History, tags: TagList = _NO_TAGS, verified: int | None = None) -> dict[int, str]:
        """As Retention.kept."""
        held = self.held()
        reasons = Retention(keep_last=1, keep_best=0, best="").kept(history, tags, verified)
        copied = [] if held is None else [commit.sequence for commit in history.commits if commit.sequence == held]
        return {**dict.fromkeys(copied, "it is being copied to the next tier"), **reasons}


class Pruner:
    """Removes, for the writer of a store, the commits that do not stay and then what no commit needs.

    Args:
        store: The store.
        retention: What stays.
    """

    def __init__(self, store: Store, retention: Keeping) -> None:
        self._collector = Collector(store, retention)
        self._verified: int | None = None

    def note_verified(self, commit: Commit) -> None:
        """Remember that a commit was read back whole: it stays until a newer one was."""
        self._verified = max(commit.sequence, self._verified or 0)

    def prune(self, newest: int) -> None:
        """Remove what need not stay; for the writer that has just written the commit of number `newest`.

        Should another writer have taken over since, nothing is removed, because the objects may be its own.

        Raises:
            StoreError: the store did not answer.
        """
        plan = self._collector.plan(writer_at=newest, verified=self._verified)
        for warning in plan.warnings:
            log.warning("%s", warning)
        self._collector.carry_out(plan)
