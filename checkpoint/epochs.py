"""The right to write: the newest claim wins, and a writer that lost it finds out at its next commit."""

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from gradwire.checkpoint.commit import Ancestry, Commit, Epoch, Parent, Writer, commit_name, followed_by
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.errors import StoreError, WriterFenced
from gradwire.checkpoint.snapshot import PartRef
from gradwire.checkpoint.store import Store

log = logging.getLogger(__name__)
_MOST_CLAIMS = 100


@dataclass(frozen=True)
class Draft:
    """What a commit says beside its place in the sequence; fields as in Commit."""

    reason: str
    clock: Mapping[str, int | float]
    metrics: Mapping[str, float]
    world_size: int
    captured: Mapping[str, tuple[str, ...]]
    parts: tuple[PartRef, ...]


class CommitWriter:
    """Appends commits to a store's sequence under an epoch of its own.

    Args:
        store: The store.
        identity: Names the writer for people.
    """

    def __init__(self, store: Store, identity: str) -> None:
        self._store = store
        self._log = CommitLog(store)
        self._writer = Writer(identity, secrets.token_hex(16))
        self._epoch: int | None = None
        self._last = 0
        self._parent: Commit | None = None
        self._ancestry: Ancestry = ()
        self._start: int | None = None

    def continue_from(self, commit: Commit) -> None:
        """Make later commits descend from this one."""
        self._parent = commit
        self._ancestry = commit.ancestry
        self._start = None if self._epoch is None else self._last + 1

    def claim(self) -> None:
        """Take over the store, unless this writer has already; earlier writers cannot commit any more.

        Raises:
            UnsupportedFormat: a newer version writes to this store.
            StoreError: the claim could not be written, or the store does not keep two writers apart.
        """
        if self._epoch is not None:
            return
        for _ in range(_MOST_CLAIMS):
            history = self._log.history()
            epoch = Epoch(history.last + 1, self._writer, _now())
            data = epoch.to_bytes()
            if self._store.put_new(commit_name(epoch.sequence), data):
                self._store.check_create(commit_name(epoch.sequence), data)
                self._epoch = self._last = epoch.sequence
                self._start = epoch.sequence
                self._store.sweep()
                self._warn_of_strangers(history.newest)
                return
        raise StoreError(f"{self._store.url}: other writers took the next number {_MOST_CLAIMS} times in a row")

    def publish(self, draft: Draft) -> Commit:
        """Commit a snapshot whose parts are all written.

        Raises:
            WriterFenced: another writer has taken over.
            StoreError: the commit was not written, or that is not known.
        """
        while True:
            commit = self._place(draft)
            if self._store.put_new(commit.name, commit.to_bytes()):
                break
            present = self._log.read(commit.sequence)
            if present.writer != self._writer or not isinstance(present, Commit):
                raise WriterFenced(
                    f"{self._store.url}: writer {present.writer.identity!r} took over at {present.created} (number "
                    f"{present.sequence}); this writer, {self._writer.identity!r}, must stop"
                )
            self._adopt(present)  # an earlier commit of ours whose success we never heard of
        self._adopt(commit)
        return commit

    def holds(self) -> bool:
        """Whether the newest number is still this writer's own.

        Raises:
            StoreError: the listing failed.
        """
        sequences = self._log.sequences()
        return bool(sequences) and sequences[-1] == self._last

    def _place(self, draft: Draft) -> Commit:
        if self._epoch is None or self._start is None:
            raise StoreError(f"{self._store.url}: a commit needs a claimed epoch")
        sequence = self._last + 1
        return Commit(
            sequence=sequence,
            parent=None if self._parent is None else Parent(self._parent.sequence, self._parent.digest),
            ancestry=followed_by(self._ancestry, self._start, sequence),
            epoch=self._epoch,
            writer=self._writer,
            created=_now(),
            reason=draft.reason,
            clock=draft.clock,
            metrics=draft.metrics,
            world_size=draft.world_size,
            captured=draft.captured,
            parts=draft.parts,
        )

    def _adopt(self, commit: Commit) -> None:
        self._last, self._parent = commit.sequence, commit

    def _warn_of_strangers(self, newest: Commit | None) -> None:
        if self._parent is None and newest is not None:
            log.warning(
                "%s already holds snapshots up to update %d, which this run does not continue from; they go as newer "
                "ones come. Restore first to continue, or use another URL",
                self._store.url,
                newest.update,
            )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
