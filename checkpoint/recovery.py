"""Reading the journal together: the updates that follow a snapshot, handed to every rank in order."""

import logging
from collections.abc import Iterator

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

    Raises:
        DamagedCheckpoint: it cannot be known what counts.
        StoreError: the store did not answer.
    """

    def __init__(self, store: Store, ranks: Ranks, base: Commit) -> None:
        self._store = store
        self._ranks = ranks
        self._base = base
        self._reader: JournalReader | None = None
        listed = raising(lambda: ranks.on_first(self._list))
        self._names: dict[int, tuple[str, ...]] = {int(update): tuple(names) for update, names in listed}

    @property
    def base(self) -> Commit:
        return self._base

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
        for update, names in self._names.items():
            if last is not None and update > last:
                return
            found: list[Entry] = []
            try:
                raising(lambda: self._ranks.together(lambda: found.extend(read_update(self._store, names))))  # noqa: B023
            except DamagedCheckpoint as error:
                if self._ranks.rank == 0:
                    log.warning("the journal after update %d does not count: %s", update - 1, error)
                return
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
        self._reader = JournalReader(self._store, self._base)
        return list(self._reader.names.items())
