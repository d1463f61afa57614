"""Starting a new store at a snapshot of another, or at an update that was journalled since."""

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.checkpoint.commit import LONGEST_COMMIT, Commit, commit_name
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.errors import DamagedCheckpoint, NoCheckpoint, StoreError
from gradwire.checkpoint.journal import LONGEST_ENTRY, Place, parse_journal_entry
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.outline import read_outline
from gradwire.checkpoint.packs import PackRef
from gradwire.checkpoint.reading import find, reading
from gradwire.checkpoint.snapshot import PartRef
from gradwire.checkpoint.store import Store, content_name
from gradwire.checkpoint.verification import verify


@dataclass(frozen=True)
class Fork:
    """A store that was started at an update of another.

    Args:
        commit: The snapshot that was copied; the same document in both stores.
        update: Where the new store begins: the snapshot's update, or one that its journal leads to.
        size: Bytes copied.
    """

    commit: Commit
    update: int
    size: int


def fork(
    source: Store, target: Store, ref: int | str | None = None, progress: Callable[[int], None] = lambda size: None
) -> Fork:
    """Copy one snapshot, and what of the journal leads from it to the update, into a new store; verified throughout.

    The commit keeps its number and digest, so that the journal stays valid and both stores can be compared. It is
    written last: a fork that was cut off holds no snapshot, and can be begun again.

    Args:
        source: Where the snapshot is.
        target: A store without snapshots.
        ref: An update of the present branch (journalled ones too), a tag, or None for the newest snapshot.
        progress: Told the bytes of each object that was copied.

    Raises:
        NoCheckpoint: there is no such snapshot or journalled update, or it was removed meanwhile.
        DamagedCheckpoint: it is not whole, or what was written does not read back.
        StoreError: the target holds snapshots already, or a store did not answer.
    """
    present = CommitLog(target).history()
    if present.commits or present.damaged:
        raise StoreError(f"{target.url} holds snapshots already: fork to a URL of its own")
    commit, update = _base(source, ref)
    copied = 0
    with reading(source, commit):
        outline = read_outline(source, commit)
        packs = {pack.name: pack for part in outline.parts for pack in part.packs}
        refs: list[PackRef | PartRef] = [*packs.values(), *commit.parts]
        for each in refs:
            data = source.get(each.name, each.size)
            if content_name(data) != each.digest:
                raise DamagedCheckpoint(f"{source.url}: {each.name} is altered: its bytes do not have their digest")
            target.put_content(each.name.partition("/")[0], data, each.digest)
            copied += len(data)
            progress(len(data))
        documents, size = _copy_journal(source, target, commit, update)
        verify(target, commit)
    claims = {name: source.get(name, LONGEST_COMMIT) for name in documents}
    for name, document in {**claims, commit.name: commit.to_bytes()}.items():
        if not target.put_new(name, document):
            raise StoreError(f"{target.url}: another writer took it over; fork to a URL of its own")
    return Fork(commit, update, copied + size)


def _base(source: Store, ref: int | str | None) -> tuple[Commit, int]:
    """The snapshot to begin from, and the update to end at."""
    if not isinstance(ref, int):
        commit = find(source, ref)
        return commit, commit.update
    history = CommitLog(source).history()
    try:
        return history.at(ref), ref
    except (NoCheckpoint, DamagedCheckpoint):
        for commit in reversed([commit for commit in history.ancestry if commit.update < ref]):
            if ref in JournalReader(source, commit).names:
                return commit, ref
        raise


def _copy_journal(source: Store, target: Store, commit: Commit, update: int) -> tuple[list[str], int]:
    """Copy the entries from a snapshot to an update; names of the claims that they need, and the bytes copied."""
    epochs, size = {commit.epoch}, 0
    if update > commit.update:
        for each, names in JournalReader(source, commit).names.items():
            if each > update:
                break
            for name in names:
                data = source.get(name, LONGEST_ENTRY)
                parse_journal_entry(data, Place.of(name), f"{source.url}: {name}")
                target.put_new(name, data)
                epochs.add(Place.of(name).epoch)
                size += len(data)
    return [commit_name(epoch) for epoch in sorted(epochs)], size
