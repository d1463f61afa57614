"""Several stores for one run, nearest first: the right to write to all of them, and what each goes on from."""

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradwire.checkpoint import memory
from gradwire.checkpoint.branches import Found, Line, at_most
from gradwire.checkpoint.cleaning import Cleaner
from gradwire.checkpoint.commit import LONGEST_COMMIT, Commit, Seal
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.epochs import CommitWriter, Draft
from gradwire.checkpoint.errors import MissingObject, NoCheckpoint, StoreError
from gradwire.checkpoint.garbage import Keeping
from gradwire.checkpoint.hop import Hop
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.ranks import Ranks
from gradwire.checkpoint.retention import Newest
from gradwire.checkpoint.store import Store, content_name

Claim = list[Any]  # tier, name and digest of an epoch that was just claimed, as JSON has it
_PATIENCE = 5.0  # seconds until a network file system shows what another host has written


def open_tiers(url: str, tiers: Sequence[str]) -> tuple[list[Store], list[Path]]:
    """The stores of a run, nearest first, and the folders in the host's memory among them.

    Args:
        url: Of the last one.
        tiers: URLs of the others; `memory` is a folder of the host's memory.

    Raises:
        StoreError: one of them cannot be a store, or is named twice.
    """
    in_memory = [memory.folder_for(url) for tier in tiers if tier == memory.MEMORY]
    urls = [*(str(memory.folder_for(url)) if tier == memory.MEMORY else tier for tier in tiers), url]
    twice = sorted({each for each in urls if urls.count(each) > 1})
    if twice:
        raise StoreError(f"{', '.join(twice)}: each tier needs a place of its own")
    return [Store.open(each) for each in urls], in_memory


class Tiers:
    """The right to write to the stores of a run. Snapshots are saved into the nearest and copied to the last.

    Args:
        stores: Each complete in itself; often the last one only, which is the run's store.
        identity: Names the writer for people.
        keeping: What stays in the last one; in the others the newest snapshot does.
        keep_journal: Newest commits of which the journal stays.
        in_memory: Folders that are made with the first claim.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        identity: str,
        keeping: Keeping,
        keep_journal: int,
        in_memory: Sequence[Path] = (),
    ) -> None:
        self.stores = tuple(stores)
        self._in_memory = in_memory
        self._writers = [CommitWriter(store, identity) for store in stores]
        self.hops: list[Hop]
        nearer = [Newest(lambda tier=tier: self.hops[tier].held) for tier in range(len(stores) - 1)]  # type: ignore[misc]
        keepings: list[Keeping] = [*nearer, keeping]
        cleaners = [Cleaner(store, each, keep_journal) for store, each in zip(stores, keepings, strict=True)]
        self.cleaner = cleaners[0]
        self.hops = [
            Hop(
                stores[tier], stores[tier + 1], self._writers[tier + 1], cleaners[tier + 1].clean, self._offer(tier + 1)
            )
            for tier in range(len(stores) - 1)
        ]
        self._nonce = secrets.token_hex(16)
        self._restored: Found | None = None
        self._bases: list[Commit | None] = [None for _ in stores]
        self._reached: int | None = None  # the update that the last tier's journal leads to, where the run goes on
        self._unseen: list[Claim] = []

    @property
    def last(self) -> Store:
        return self.stores[-1]

    def claim(self) -> list[Claim]:
        """Take over every tier, nearest first, unless that was done; what was claimed since the last `show`.

        On the first rank. What was restored from a nearer tier than has it is then copied onward.

        Raises:
            WriterFenced, StoreError, UnsupportedFormat: as CommitWriter.claim.
        """
        for folder in self._in_memory:
            memory.make(folder)
        if all(writer.claimed for writer in self._writers):
            return list(self._unseen)
        self._join()
        for tier, writer in enumerate(self._writers):
            claim = writer.claim(self._nonce if self.hops else None)
            if claim is not None:
                self._unseen.append([tier, claim.name, content_name(claim.to_bytes())])
        self._offer_restored()
        return list(self._unseen)

    def show(self, ranks: Ranks, claims: Sequence[Claim]) -> None:
        """Make sure that all ranks see what the first one has just claimed, so that they all write to one place.

        Raises:
            RanksFailed: a rank does not.
        """
        if claims and ranks.size > 1:
            ranks.together(lambda: self._look(claims))
        self._unseen = []

    def publish(self, draft: Draft) -> Commit:
        """Commit a snapshot in the nearest tier, and have it copied to the others. As CommitWriter.publish."""
        commit = self._writers[0].publish(draft)
        self._offer(0)(commit)
        return commit

    def holds(self) -> bool:
        """As CommitWriter.holds, of the nearest tier."""
        return self._writers[0].holds()

    @property
    def left_behind(self) -> bool:
        """As CommitWriter.left_behind, of the nearest tier."""
        return self._writers[0].left_behind

    @property
    def epoch(self) -> int:
        """As CommitWriter.epoch, of the last tier."""
        return self._writers[-1].epoch

    def continue_from(self, found: Found, lines: Sequence[Line] = ()) -> None:
        """Make later commits descend, in every tier, from a snapshot that was restored; nothing is being copied.

        Args:
            found: The snapshot.
            lines: The commits of each tier that count; on the first rank, which writes.
        """
        update = found.commit.update
        self._bases = [at_most(line, update) for line in lines] or [None for _ in self.stores]
        self._bases[found.tier] = found.commit
        self._restored, self._reached, self._unseen = found, None, []
        self._nonce = secrets.token_hex(16)
        for writer, base in zip(self._writers, self._bases, strict=True):
            writer.continue_from(base)
        for hop in self.hops:
            hop.go_back()

    def continue_at(self, base: Commit, seal: Seal | None, update: int) -> None:
        """Make what follows continue from a journalled update that was replayed on what was restored."""
        self._writers[-1].continue_from(base, seal)
        self._reached = update

    def base_of(self, commit: Commit) -> Commit | None:
        """The snapshot of the last tier whose journal leads on from a commit; None where there is none.

        On the first rank, and for one that was restored: whatever else is asked for is the last tier's own.
        """
        restored = self._restored
        return self._bases[-1] if restored is not None and commit == restored.commit else commit

    def home_of(self, base: Commit, update: int) -> Commit | None:
        """The commit in the last tier that a journal of what follows an update may call its base.

        On the first rank, after a claim.

        Args:
            base: What was restored or saved.
            update: Its update, or what was replayed on it.

        Returns:
            None where it has to be waited for: it is being copied there.

        Raises:
            NoCheckpoint: it is a commit of another tier.
        """
        own = self.base_of(base)
        if own is None or own.digest != base.digest:
            return own if own is not None and update in (own.update, self._reached) else None
        if self.hops:
            present = CommitLog(self.last).read(base.sequence)
            if not isinstance(present, Commit) or present.digest != base.digest:
                raise NoCheckpoint(f"{self.last.url} has no such commit; the base of a journal must be one of its own")
        return base

    def free(self) -> None:
        """Give the host's memory back: the last tier has everything."""
        for folder in self._in_memory:
            memory.free(folder)

    def _offer(self, tier: int) -> Callable[[Commit], None]:
        def offer(commit: Commit) -> None:
            if tier < len(self.hops):
                self.hops[tier].offer(commit)

        return offer

    def _offer_restored(self) -> None:
        restored = self._restored
        ahead = self._reached is not None  # the last tier, with what of its journal was replayed since
        if restored is not None and (not ahead or self._reached == restored.commit.update):
            self._offer(restored.tier)(restored.commit)

    def _join(self) -> None:
        """Where the last tier lacks a restored snapshot and its journal leads there, go on from that in its place."""
        restored, base = self._restored, self._bases[-1]
        if restored is None or base is None or self._reached is not None or base.update >= restored.commit.update:
            return
        update = restored.commit.update
        journal = JournalReader(self.last, base)
        if update in journal.names and journal.leads_through(update, restored.commit.writer.nonce):
            journal.make_durable(update)
            self.continue_at(base, journal.seal(update), update)

    def _look(self, claims: Sequence[Claim]) -> None:
        for tier, name, digest in claims:
            store, end = self.stores[tier], time.monotonic() + _PATIENCE
            while not _sees(store, name, digest):
                if time.monotonic() > end:
                    raise StoreError(
                        f"{store.url} on {socket.gethostname()} does not show {name}, which the first rank has just "
                        "written there: it is another place on each host. All ranks need to see one store: name a "
                        "folder that all hosts mount, or an object store"
                    )
                time.sleep(0.1)


def _sees(store: Store, name: str, digest: str) -> bool:
    try:
        return content_name(store.get(name, LONGEST_COMMIT)) == digest
    except MissingObject:
        return False
