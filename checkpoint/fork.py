"""Starting a new store at a snapshot of another, or at an update that was journalled since."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradwire.checkpoint.commit import LONGEST_COMMIT, Commit, commit_name
from gradwire.checkpoint.commits import CommitLog, History
from gradwire.checkpoint.errors import DamagedCheckpoint, MissingObject, NoCheckpoint, StoreError
from gradwire.checkpoint.journal import LONGEST_ENTRY, Place, parse_journal_entry
from gradwire.checkpoint.journal_reader import JournalReader, entry_names
from gradwire.checkpoint.outline import read_outline
from gradwire.checkpoint.packs import PackRef
from gradwire.checkpoint.reading import find, reading
from gradwire.checkpoint.snapshot import PartRef
from gradwire.checkpoint.store import Store, content_name
from gradwire.checkpoint.tags import Tags
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
        target: A store without snapshots. What a fork that was cut off has left there is used again or removed.
        ref: An update of the present branch (journalled ones too), a tag, or None for the newest snapshot.
        progress: Told the bytes of each object that was copied.

    Raises:
        NoCheckpoint: there is no such snapshot or journalled update, or it was removed meanwhile.
        DamagedCheckpoint: it is not whole, or what was written does not read back.
        StoreError: the target holds snapshots, tags or another writer's claims already, or a store did not answer.
    """
    present = CommitLog(target).history()
    if present.commits or present.damaged:
        raise StoreError(f"{target.url} holds snapshots already: fork to a URL of its own")
    commit, update = _base(source, ref)
    entries = _entries(source, commit, update)
    epochs = {commit.epoch, *(Place.of(name).epoch for name in entries)}
    if not {epoch.sequence for epoch in present.epochs} <= epochs or Tags(target).names():
        raise _taken(target)
    for name in entry_names(target):  # without a snapshot nobody needs them, and this one must not lead to them
        target.delete(name)
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
        copied += sum(_copy_entry(source, target, name) for name in entries)
        verify(target, commit)
    claims = {commit_name(epoch): source.get(commit_name(epoch), LONGEST_COMMIT) for epoch in sorted(epochs)}
    for name, document in {**claims, commit.name: commit.to_bytes()}.items():
        if sorted(entry_names(target)) != sorted(entries) or not target.put_new(name, document):
            raise _taken(target)
    return Fork(commit, update, copied)


def _taken(target: Store) -> StoreError:
    return StoreError(
        f"{target.url} is another run's or fork's, which has written there and saved no snapshot yet: fork to a URL of "
        "its own, or empty this one first"
    )


def _base(source: Store, ref: int | str | None) -> tuple[Commit, int]:
    """The snapshot to begin from, and the update to end at."""
    if not isinstance(ref, int):
        commit = find(source, ref)
        return commit, commit.update
    history = CommitLog(source).history()
    return _whole(source, _bases(source, history, ref)), ref


def _bases(source: Store, history: History, update: int) -> list[Commit]:
    """The snapshots of one update, newest first, that are of an update or from which the journal leads to it."""
    try:
        return list(history.of(update))
    except (NoCheckpoint, DamagedCheckpoint):
        found: list[Commit] = []
        for commit in reversed([commit for commit in history.ancestry if commit.update < update]):
            if found and commit.update != found[0].update:
                break
            journal = JournalReader(source, commit)
            if update in journal.names:
                found.append(commit)
            elif journal.problem is not None and not found:
                raise journal.problem from None
        if not found:
            raise
        return found


def _whole(source: Store, commits: Sequence[Commit]) -> Commit:
    """The first that is whole; the only one as it is, which is verified when it is copied."""
    damage: list[str] = []
    for commit in commits:
        if len(commits) == 1:
            return commit
        try:
            with reading(source, commit):
                verify(source, commit)
        except DamagedCheckpoint as error:
            damage.append(f"{commit.name} is damaged: {error}")
        else:
            return commit
    raise DamagedCheckpoint(f"{source.url} has no whole snapshot of update {commits[0].update}: {'; '.join(damage)}")


def _entries(source: Store, commit: Commit, update: int) -> list[str]:
    """The names of the journal's entries from a snapshot to an update."""
    if update == commit.update:
        return []
    return [name for each, names in JournalReader(source, commit).names.items() if each <= update for name in names]


def _copy_entry(source: Store, target: Store, name: str) -> int:
    """Copy an entry; its bytes."""
    place = Place.of(name)
    try:
        data = source.get(name, LONGEST_ENTRY)
    except MissingObject as error:
        raise NoCheckpoint(
            f"{source.url}: update {place.update} was removed from the journal while it was copied, as newer snapshots "
            "were saved; fork a newer update"
        ) from error
    parse_journal_entry(data, place, f"{source.url}: {name}")
    if not target.put_new(name, data):
        raise _taken(target)
    return len(data)
