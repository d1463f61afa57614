"""Finding a snapshot by update or tag, and reading it while others may remove it."""

from collections.abc import Iterator
from contextlib import contextmanager

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.errors import DamagedCheckpoint, NoCheckpoint
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tags


def find(store: Store, ref: int | str | None = None) -> Commit:
    """The commit that a reference means; its objects are not verified.

    Args:
        store: Where it is.
        ref: An update of the present branch, the name of a tag, or None for the newest.

    Raises:
        NoCheckpoint: there is none, or the tag's was removed.
        TagError: there is no such tag.
        DamagedCheckpoint: it cannot be read, or perhaps was one of those that cannot.
        StoreError: the store cannot be read.
    """
    log = CommitLog(store)
    if isinstance(ref, str):
        return _tagged(store, log, ref)
    history = log.history()
    return history.candidates()[0] if ref is None else history.at(ref)


def _tagged(store: Store, log: CommitLog, name: str) -> Commit:
    tag = Tags(store).read(name)
    if not log.holds(tag.sequence):
        raise NoCheckpoint(f"{store.url}: the snapshot that the tag {name!r} names is gone (number {tag.sequence})")
    commit = log.read(tag.sequence)
    if not isinstance(commit, Commit) or commit.digest != tag.digest:
        raise DamagedCheckpoint(f"{store.url}: the tag {name!r} names another commit than {tag.sequence} is")
    return commit


@contextmanager
def reading(store: Store, commit: Commit) -> Iterator[None]:
    """While a snapshot is read: that it was removed meanwhile is told as that, and not as damage.

    Raises:
        NoCheckpoint: something was missing, and so is the commit by now.
        DamagedCheckpoint: something was damaged, and the commit is still there.
    """
    try:
        yield
    except DamagedCheckpoint as error:
        if CommitLog(store).holds(commit.sequence):
            raise
        raise NoCheckpoint(
            f"{store.url}: the snapshot of update {commit.update} was removed while it was read, by retention or "
            "`gradwire checkpoint prune`; choose one that stays, or tag it first"
        ) from error


def open_store(url_or_dir: str) -> Store:
    """The store at a URL, or the one in `checkpoints` below it; where both are empty, the first.

    Raises:
        StoreError: it cannot be a store, or cannot be listed.
    """
    below = f"{url_or_dir.rstrip('/')}/checkpoints"
    for url in (url_or_dir, below):
        store = Store.open(url)
        if CommitLog(store).sequences():
            return store
    return Store.open(url_or_dir)
