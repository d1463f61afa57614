"""The right to write: the newest claim wins, and a writer that lost it finds out at its next commit."""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from gradwire.checkpoint.ancestry import Ancestry, followed_by
from gradwire.checkpoint.commit import Commit, Epoch, Parent, Seal, Writer
from gradwire.checkpoint.commits import CommitLog, History
from gradwire.checkpoint.errors import StoreError, StoreUnavailable, WriterFenced
from gradwire.checkpoint.snapshot import PartRef
from gradwire.checkpoint.store import Store

log = logging.getLogger(__name__)
_MOST_CLAIMS = 100
Entry = TypeVar("Entry", Commit, Epoch)
GoingOn = Callable[[History], tuple[Commit | None, Seal | None]]


@dataclass(frozen=True)
class Draft:
    """What a commit says beside its place in the sequence; fields as in Commit, `created` None for now."""

    reason: str
    clock: Mapping[str, int | float]
    metrics: Mapping[str, float]
    world_size: int
    captured: Mapping[str, tuple[str, ...]]
    parts: tuple[PartRef, ...]
    not_captured: tuple[str, ...] = ()
    created: str | None = None


class CommitWriter:
    """Appends commits to a store's sequence under an epoch of its own.

    Args:
        store: The store.
        identity: Names the writer for people.
        repairs: Whether its claims are a repair's, see Epoch.
    """

    def __init__(self, store: Store, identity: str, *, repairs: bool = False) -> None:
        self._store = store
        self._log = CommitLog(store)
        self._repairs = repairs
        self._writer = Writer(identity, secrets.token_hex(16))
        self._nonces = {self._writer.nonce}
        self._epoch: int | None = None
        self._last = 0
        self._parent: Commit | None = None
        self._ancestry: Ancestry = ()
        self._seal: Seal | None = None
        self._start = 0
        self._claimed = False
        self._left_behind = False

    @property
    def epoch(self) -> int:
        """The number of the epoch that this writer holds.

        Raises:
            StoreError: it has claimed none, or none since it went back (`continue_from`).
        """
        if self._epoch is None or not self._claimed:
            raise StoreError(f"{self._store.url}: commits and journals need a claimed epoch")
        return self._epoch

    @property
    def claimed(self) -> bool:
        """Whether this writer holds the store since it last went back (`continue_from`)."""
        return self._claimed

    @property
    def left_behind(self) -> bool:
        """Whether there was a newer commit than the one continued from when the store was claimed, and none since.

        What the store holds of an older one may be going at this very moment: whoever wrote the newer one keeps only
        that for certain.
        """
        return self._left_behind

    @property
    def parent(self) -> Commit | None:
        """The commit that the next one descends from."""
        return self._parent

    def continue_from(self, commit: Commit | None, seal: Seal | None = None) -> None:
        """Make later commits descend from this one.

        Args:
            commit: What was restored; None where that is not in this store.
            seal: The last journalled update that was replayed on it; None where none was. The next claim makes it the
                last one of earlier epochs that counts.
        """
        self._parent = commit
        self._ancestry = () if commit is None else commit.ancestry
        self._seal = seal or (None if commit is None else Seal(commit.sequence, commit.epoch, commit.update))
        self._claimed = False

    def claim(self, nonce: str | None = None, going_on: GoingOn | None = None) -> Epoch | None:
        """Take over the store, unless this writer has already; earlier writers cannot commit any more.

        A writer that has gone back since (`continue_from`) begins another epoch: within one, updates only rise.

        Args:
            nonce: Random; marks the epoch and the commits in it. None for one that all of this writer's have.
            going_on: Says where this writer goes on from (see `continue_from`), given the commits as they are right
                before its claim; where another writer is quicker, once more. None where that is said already.

        Returns:
            The claim; None where there was no need of one.

        Raises:
            UnsupportedFormat: a newer version writes to this store.
            WriterFenced: another writer has taken over since this one claimed its first epoch, or while it did.
            StoreError: the claim could not be written, or the store does not keep two writers apart.
        """
        if self._claimed:
            return None
        if nonce is not None:
            self._writer = Writer(self._writer.identity, nonce)
            self._nonces.add(nonce)
        if self._epoch is None:
            claim = self._take_over(going_on)
        else:
            claim = self._append(self._claim_next)
            self._begin(claim)
        newest = self._log.history().commits[-1:]
        self._left_behind = bool(newest) and (self._parent is None or self._parent.sequence != newest[0].sequence)
        self._claimed = True
        return claim

    def publish(self, draft: Draft) -> Commit:
        """Commit a snapshot whose parts are all written.

        Raises:
            WriterFenced: another writer has taken over.
            StoreError: the commit was not written, or that is not known.
        """
        commit = self._append(lambda: self._place(draft))
        self._parent, self._left_behind = commit, False
        return commit

    def holds(self) -> bool:
        """Whether the newest number is still this writer's own.

        Raises:
            StoreError: the listing failed.
        """
        sequences = self._log.sequences()
        return bool(sequences) and sequences[-1] == self._last

    def _take_over(self, going_on: GoingOn | None) -> Epoch:
        for _ in range(_MOST_CLAIMS):
            history = self._log.history()
            if going_on is not None:
                self.continue_from(*going_on(history))
            self._last = max(history.last, self._parent.sequence if self._parent else 0)
            epoch = self._claim_next()
            if self._store.put_new(epoch.name, epoch.to_bytes()):
                self._store.check_create(epoch.name, epoch.to_bytes())
                self._check_newest(epoch)
                self._begin(epoch)
                self._store.sweep()
                self._warn_of_strangers(history.newest)
                return epoch
        raise StoreError(f"{self._store.url}: other writers took the next number {_MOST_CLAIMS} times in a row")

    def _check_newest(self, claim: Epoch) -> None:
        """Prove that the listing which told the number of a claim was not an old one: pruning frees numbers."""
        listed = self._store.list("commits")
        if claim.name not in listed:
            raise StoreUnavailable(
                f"{self._store.url} does not list {claim.name}, which was just written: its listings lag behind, and "
                "what is newest there is not known. Try again later"
            )
        if listed[-1] != claim.name:
            raise WriterFenced(
                f"{self._store.url}: {listed[-1]} follows the number that was just claimed, {claim.sequence}: another "
                "writer has taken over since, or the listing before was an old one. Make sure that one run writes "
                "here, and start this one again"
            )

    def _claim_next(self) -> Epoch:
        return Epoch(self._last + 1, self._writer, _now(), self._seal, self._repairs)

    def _begin(self, epoch: Epoch) -> None:
        self._epoch = self._last = self._start = epoch.sequence

    def _append(self, entry: Callable[[], Entry]) -> Entry:
        """Write the entry of this writer's next number."""
        while True:
            placed = entry()
            if self._store.put_new(placed.name, placed.to_bytes()):
                self._last = placed.sequence
                return placed
            present = self._log.read(placed.sequence)
            if present.writer.nonce not in self._nonces:
                raise WriterFenced(
                    f"{self._store.url}: writer {present.writer.identity!r} took over at {present.created} (number "
                    f"{present.sequence}); this writer, {self._writer.identity!r}, must stop"
                )
            self._adopt(present)

    def _adopt(self, present: Commit | Epoch) -> None:
        """Go on from an earlier entry of this writer whose success it never heard of."""
        self._last = present.sequence
        if isinstance(present, Commit) and self._claimed:  # a new epoch's parent is what it continues from
            self._parent = present

    def _place(self, draft: Draft) -> Commit:
        sequence, epoch = self._last + 1, self.epoch
        return Commit(
            sequence=sequence,
            parent=None if self._parent is None else Parent(self._parent.sequence, self._parent.digest),
            ancestry=followed_by(self._ancestry, self._start, sequence),
            epoch=epoch,
            writer=self._writer,
            created=draft.created or _now(),
            reason=draft.reason,
            clock=draft.clock,
            metrics=draft.metrics,
            world_size=draft.world_size,
            captured=draft.captured,
            parts=draft.parts,
            not_captured=draft.not_captured,
        )

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
