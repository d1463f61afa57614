"""Entries of the journal that no snapshot can be replayed with any more."""

from collections.abc import Iterator

from gradwire.checkpoint.commits import History
from gradwire.checkpoint.errors import DamagedCheckpoint
from gradwire.checkpoint.journal import Place
from gradwire.checkpoint.journal_reader import JournalReader, entry_names
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.verdicts import Verdict


class JournalGarbage:
    """Tells what becomes of each entry of a store's journal.

    Entries of the newest epoch stay: its writer may be at work.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, history: History, kept: set[int]) -> Iterator[Verdict]:
        """A verdict on each entry, with the commits of the numbers `kept` staying.

        Raises:
            StoreError: the store did not answer.
        """
        entries = list(entry_names(self._store))
        if not entries:
            return
        newest = max((epoch.sequence for epoch in history.epochs), default=0)
        needed, problem = self._needed(history, kept)
        for name in entries:
            if name in needed:
                yield Verdict(name, False, f"it can be replayed on update {needed[name]}, which stays")
            elif problem is not None:
                yield Verdict(name, False, f"it is not known which snapshot needs it: {problem}")
            elif Place.of(name).epoch >= newest:
                yield Verdict(name, False, "of the newest writer, who may be at work")
            else:
                yield Verdict(name, True, "no snapshot that stays can be replayed with it")

    def _needed(self, history: History, kept: set[int]) -> tuple[dict[str, int], DamagedCheckpoint | None]:
        """The entries that can be replayed, each with the update of the base; and why not all of them are known."""
        needed: dict[str, int] = {}
        problem = next(iter(history.damaged.values()), None)
        for commit in history.commits:
            if commit.sequence in kept:
                reader = JournalReader(self._store, commit)
                problem = problem or reader.problem
                needed |= {name: commit.update for ranks in reader.names.values() for name in ranks}
        return needed, problem
