"""Reading the journal together: the updates that follow a snapshot, handed to every rank in order."""

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from gradwire.checkpoint.commit import Commit, Seal
from gradwire.checkpoint.errors import DamagedCheckpoint
from gradwire.checkpoint.journal import Entry
from gradwire.checkpoint.journal_reader import JournalReader, read_update
from gradwire.checkpoint.ranks import Ranks, raising
from gradwire.checkpoint.store import Store

log = logging.getLogger(__name__)


class Recovery:
    """What was journalled after a commit, for all ranks of a group; only rank 0 lists the store. A collective.

    Args:
        store: The store.
        ranks: Who reads.
        base: The commit that was restored.
        home: The same in this store, or what led to it there; None where there is none, and hence no journal.

    Raises:
        StoreError: the store did not answer.
    """

    def __init__(self, store: Store, ranks: Ranks, base: Commit, home: Commit | None) -> None:
        self._store = store
        self._ranks = ranks
        self._base = base
        self._home = home
        self._reader: JournalReader | None = None
        listed = raising(lambda: ranks.on_first(self._list))
        self._names: dict[int, tuple[str, ...]] = {int(update): tuple(names) for update, names in listed}

    @property
    def base(self) -> Commit:
        return self._base

    @property
    def home(self) -> Commit | None:
        """The commit that the journal follows in its store."""
        return self._home

    @property
    def last(self) -> int:
        """The last update that the journal reaches, its entries not yet read; the base's where there are none."""
        return max(self._names, default=self._base.update)

    def entries(self, last: int | None = None) -> Iterator[tuple[int, list[Entry]]]:
        """Each update up to `last` with its entries, one for each rank that journalled it, verified on every rank.

        Ends with a warning before damage that any rank has met. A collective at every step.

        Raises:
            UnsupportedFormat, StateTooLarge, StoreError: an entry could not be read.
        """
        wanted = [(update, names) for update, names in self._names.items() if last is None or update <= last]
        with ThreadPoolExecutor(1, "gradwire-recovery") as thread:  # the next update is read while one is replayed
            reading = deque(thread.submit(read_update, self._store, names) for _, names in wanted[:1])
            for place, (update, _) in enumerate(wanted):
                read = reading.popleft()
                found: list[Entry] = []
                try:
                    raising(lambda: self._ranks.together(lambda: found.extend(read.result())))  # noqa: B023
                except DamagedCheckpoint as error:
                    if self._ranks.rank == 0:
                        log.warning("the journal after update %d does not count: %s", update - 1, error)
                    return
                reading.extend(thread.submit(read_update, self._store, names) for _, names in wanted[place + 1 :][:1])
                yield update, found

    def seal(self, update: int) -> Seal | None:
        """What a writer seals that goes on from an update, which is durable then; on rank 0, which writes the commits.

        A collective.

        Raises:
            StoreError: the store did not take it.
        """
        raising(lambda: self._ranks.on_first(lambda: self._make_durable(update)))
        return None if self._reader is None else self._reader.seal(update)

    def _make_durable(self, update: int) -> None:
        if self._reader is not None:
            self._reader.make_durable(update)

    def _list(self) -> list[tuple[int, tuple[str, ...]]]:
        if self._home is None:
            return []
        self._reader = JournalReader(self._store, self._home)
        if self._reader.problem is not None:
            log.warning("%s", self._reader.problem)
        base, home = self._base, self._home
        if base.update > home.update and not self._reader.leads_through(base.update, base.writer.nonce):
            return []  # another run went on from the snapshot before
        return [(update, names) for update, names in self._reader.names.items() if update > self._base.update]
