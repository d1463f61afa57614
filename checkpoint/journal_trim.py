"""Removing journals that no kept snapshot needs."""

from collections.abc import Callable, Sequence

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.journal import Place
from gradwire.checkpoint.store import Store


def trim(store: Store, bases: Sequence[Commit], verify: Callable[[Commit], None]) -> int:
    """Remove entries that no kept base can be replayed with; for the writer that has just committed the last of them.

    What was journalled while the oldest base was being saved, in the folder of the base before, stays with it. Where
    another writer has taken over, nothing is removed.

    Args:
        store: The store.
        bases: Commits whose journals stay, oldest first, each an ancestor of the next.
        verify: Reads the last of them back, and raises where it is not whole; then nothing is removed.

    Returns:
        How many entries were removed.

    Raises:
        DamagedCheckpoint: the last base is not whole.
        StoreError: the store did not answer.
    """
    if not bases:
        return 0  # an old listing: there is the commit just written
    oldest, newest = bases[0], bases[-1]
    older = [folder for folder in store.folders("journal") if int(folder.rpartition("/")[2]) < oldest.sequence]
    if not older:
        return 0
    verify(newest)
    if CommitLog(store).sequences()[-1:] != [newest.sequence]:
        return 0
    return sum(_trim_base(store, folder, oldest, newest.epoch) for folder in older)


def serves(place: Place, base: Commit) -> bool:
    """Whether an entry may be needed to go on from a commit.

    It is in the commit's own folder, or was journalled by the same writer while the commit was being saved: until then
    entries go into the folder of the base before.
    """
    return place.base == base.sequence or (place.epoch == base.epoch and place.update > base.update)


def _trim_base(store: Store, base_folder: str, oldest: Commit, present: int) -> int:
    removed = 0
    for folder in store.folders(base_folder):
        for name in reversed(store.list(folder)):  # the newest go first, so that what remains has no gap
            if not serves(Place.of(name), oldest):
                store.delete(name)
                removed += 1
        if int(folder.rpartition("/")[2]) == present:  # what is unfinished there, this run's ranks are writing
            store.remove_empty(folder)
        else:
            store.remove_folder(folder)
    store.remove_empty(base_folder)
    return removed
