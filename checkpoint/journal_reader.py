"""Reading the journal: which updates count after a commit, and what they consumed."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from gradwire.checkpoint.commit import Commit, Epoch, Seal
from gradwire.checkpoint.commits import CommitLog, History
from gradwire.checkpoint.errors import DamagedCheckpoint, MissingObject, NoCheckpoint
from gradwire.checkpoint.journal import LONGEST_ENTRY, Entry, Place, journal_folder, parse_journal_entry
from gradwire.checkpoint.lineage import Stretch, UnknownClaimError, lineage
from gradwire.checkpoint.store import Store

log = logging.getLogger(__name__)

Names = Mapping[int, tuple[str, ...]]


class JournalReader:
    """The updates that were journalled after a commit, as they were when the reader was made.

    An update counts if the entries of all its ranks are there and verify, and so do those of all updates between the
    commit and it. Epochs follow each other as their claims say: of each, only what was made up to the update that its
    successor went on from counts.

    Args:
        store: The store.
        base: The commit; restoring begins there.

    Attributes:
        problem: Why nothing counts, where that is so because the claim of an epoch cannot be read.

    Raises:
        UnsupportedFormat: a commit or a claim was written in a newer format.
        StoreError: the store did not answer.
    """

    def __init__(self, store: Store, base: Commit) -> None:
        self._store = store
        self._base = base
        folders, history = _folders(store), CommitLog(store).history()
        self._nonces = {epoch.sequence: epoch.writer.nonce for epoch in history.epochs}
        self.problem: DamagedCheckpoint | None = None
        stretches: tuple[Stretch, ...] = ()
        try:
            stretches = _stretches(history, folders, base)
        except DamagedCheckpoint as error:
            self.problem = error
        found = {stretch: _listed(store, folders.get(stretch.epoch, ()), stretch) for stretch in stretches}
        self._stretches = stretches
        self._epochs: dict[int, int] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._folders = folders
        for stretch, updates in found.items():
            self._follow(stretch, updates)

    def _follow(self, stretch: Stretch, updates: Mapping[int, list[str]]) -> None:
        update = stretch.first
        if update != self._base.update + 1 + len(self._names):
            return
        while stretch.last is None or update <= stretch.last:
            listed = updates.get(update, [])
            names = _whole(listed) or self._unlisted(stretch.epoch, update, listed)
            if not names:
                return
            self._names[update] = names
            self._epochs[update] = stretch.epoch
            update += 1

    def _unlisted(self, epoch: int, update: int, listed: Sequence[str]) -> tuple[str, ...]:
        """The entries of an update of which an old listing shows none or some; none where they are not all there."""
        parent = self._base.parent
        bases = (self._base.sequence, *self._folders.get(epoch, ()), *((parent.sequence,) if parent else ()))
        before = self._names.get(update - 1)
        size = len(before) if before else self._base.world_size
        for base in dict.fromkeys(bases):
            names = tuple(Place(base, epoch, update, rank, size).name for rank in range(size))
            if {*listed} <= {*names} and all(_is_there(self._store, name) for name in names):
                return names
        return ()

    @property
    def base(self) -> Commit:
        return self._base

    @property
    def names(self) -> Names:
        """The objects of each update, one for each rank, in order; of the updates whose entries are there.

        What one rank has listed, the others can hand to `read_update`.
        """
        return MappingProxyType(self._names)

    def updates(self) -> list[int]:
        """The updates that count; every entry is read and verified.

        Raises:
            UnsupportedFormat, StateTooLarge, StoreError: an entry could not be read.
        """
        return [update for update, _ in self.entries()]

    def entries(self) -> Iterator[tuple[int, list[Entry]]]:
        """Each update that counts with its entries, one for each rank, in order. Ends with a warning before damage.

        Raises:
            UnsupportedFormat, StateTooLarge, StoreError: an entry could not be read.
        """
        for update in self._names:
            try:
                entries = self.read(update)
            except DamagedCheckpoint as error:
                log.warning("the journal after update %d does not count: %s", update - 1, error)
                return
            yield update, entries

    def read(self, update: int) -> list[Entry]:
        """The entries of an update, one for each rank, in order, verified.

        Raises:
            NoCheckpoint: the update is not in the journal.
            DamagedCheckpoint: an entry is missing or altered.
            UnsupportedFormat, StateTooLarge, StoreError: an entry could not be read.
        """
        if update not in self._names:
            last = self._base.update + len(self._names)
            raise NoCheckpoint(
                f"{self._store.url}: update {update} is not in the journal; it has updates {self._base.update + 1} to "
                f"{last} after the snapshot of update {self._base.update}"
                if self._names
                else f"{self._store.url}: there is no journal after the snapshot of update {self._base.update}"
            )
        return read_update(self._store, self._names[update])

    def _made_by(self, update: int, nonce: str) -> bool:
        """Whether an update was journalled by the run of a nonce, so that it leads through that run's snapshots."""
        return self._nonces.get(self._epochs.get(update, 0)) == nonce

    def leads_through(self, update: int, nonce: str) -> bool:
        """Whether what counts leads through the state that the run of a nonce had after an update.

        That run made the update, or went on from it: it may have saved at once what it had replayed.
        """
        begins = any(each.first == update + 1 and self._nonces.get(each.epoch) == nonce for each in self._stretches)
        return self._made_by(update, nonce) or (begins and update in self._names)

    def make_durable(self, update: int) -> None:
        """Make sure that nothing up to an update is lost any more; for a writer that goes on from it.

        Whoever journalled it may have been killed, or have lost touch with the store, before that was certain.

        Raises:
            StoreError: the store did not take it.
        """
        for folder in dict.fromkeys(
            name.rpartition("/")[0] for number, names in self._names.items() if number <= update for name in names
        ):
            self._store.confirm(folder)

    def seal(self, update: int) -> Seal:
        """What a writer that goes on from an update seals: see CommitWriter.continue_from.

        Raises:
            NoCheckpoint: it is neither the base's nor in the journal.
        """
        if update == self._base.update:
            return Seal(self._base.sequence, self._base.epoch, update)
        if update not in self._epochs:
            raise NoCheckpoint(f"{self._store.url}: update {update} is not in the journal")
        return Seal(self._base.sequence, self._epochs[update], update)


def entry_names(store: Store) -> Iterator[str]:
    """The names of all entries in a store, whether they count or not.

    Raises:
        StoreError: the store could not be listed.
    """
    for base in store.folders("journal"):
        for epoch in store.folders(base):
            yield from store.list(epoch)


def journalled_epochs(store: Store) -> frozenset[int]:
    """The epochs that have a journal.

    Raises:
        StoreError: the store could not be listed.
    """
    return frozenset(_folders(store))


def read_update(store: Store, names: Sequence[str]) -> list[Entry]:
    """The entries of the objects of an update, verified; errors as of JournalReader.read."""
    return [
        parse_journal_entry(store.get(name, LONGEST_ENTRY), Place.of(name), f"{store.url}: {name}") for name in names
    ]


def _is_there(store: Store, name: str) -> bool:
    try:
        store.size(name)
    except MissingObject:
        return False
    return True


def _folders(store: Store) -> dict[int, list[int]]:
    """The bases under which each epoch has a folder."""
    bases: dict[int, list[int]] = defaultdict(list)
    for base in store.folders("journal"):
        for folder in store.folders(base):
            bases[_number(folder)].append(_number(base))
    return dict(bases)


def _number(folder: str) -> int:
    return int(folder.rpartition("/")[2])


def _unreadable(history: History, folders: Mapping[int, list[int]]) -> set[int]:
    """The epochs that have a journal, or that others went on from, whose claims cannot be read."""
    continued = {epoch.seals.epoch for epoch in history.epochs if epoch.seals}
    return continued.union(folders) - {epoch.sequence for epoch in _telling(history)}


def _telling(history: History) -> list[Epoch]:
    """The claims that say where their writers went on from; a repair has put others where it found damage."""
    return [epoch for epoch in history.epochs if epoch.seals or not epoch.repairs]


def _stretches(history: History, folders: Mapping[int, list[int]], base: Commit) -> tuple[Stretch, ...]:
    """What was made after the base.

    Raises:
        DamagedCheckpoint: the claim that says it cannot be read.
    """
    try:
        return lineage(_telling(history), base, _unreadable(history, folders))
    except UnknownClaimError as unknown:
        reason = history.damaged.get(unknown.epoch, "it is missing, or was damaged before a repair")
        raise DamagedCheckpoint(
            f"{history.url}: the claim of epoch {unknown.epoch} cannot be read ({reason}), so it is not known which "
            f"updates count after that of the snapshot, {base.update}: none of them do"
        ) from None


def _listed(store: Store, bases: Sequence[int], stretch: Stretch) -> dict[int, list[str]]:
    """Names of the entries of a stretch, by update."""
    updates: dict[int, list[str]] = defaultdict(list)
    for base in bases:
        for name in store.list(journal_folder(base, stretch.epoch)):
            if Place.of(name).update >= stretch.first:
                updates[Place.of(name).update].append(name)
    return updates


def _whole(names: Sequence[str]) -> tuple[str, ...]:
    """The names in the order of their ranks if they are one for each, else none."""
    places = {Place.of(name).rank: name for name in names}
    sizes = {Place.of(name).world_size for name in names}
    if (
        len(sizes) != 1
        or len(names) != len(places)
        or sorted(places) != list(range(len(names)))
        or {len(names)} != sizes
    ):
        return ()
    return tuple(places[rank] for rank in range(len(names)))
