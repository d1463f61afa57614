"""What a store holds and no longer needs: found, explained, removed, beside writers and readers.

Commits go first, then what only they needed: a reader whose snapshot goes finds its commit gone and says so. A save
that is under way relies on two kinds of objects only: those of the commit that its writer goes on from, which stays,
and those that it has written, or written again, since; they are younger than the newest commit. So whoever is not the
writer leaves the young alone. The writer has no save under way when it cleans up, and stops when another takes over.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from gradwire.checkpoint.commit import Commit, commit_name
from gradwire.checkpoint.commits import CommitLog, History
from gradwire.checkpoint.errors import DamagedCheckpoint, MissingObject
from gradwire.checkpoint.snapshot import read_part
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import TagList, Tags
from gradwire.checkpoint.verdicts import Plan, Verdict

GRACE = 86_400.0  # seconds that a save takes at most
_COARSE = 1.0  # seconds: object stores tell times no finer
_FRESH = 1.0  # seconds for which it holds that nobody has taken over


class Keeping(Protocol):
    """What decides which commits stay."""

    def kept(self, history: History, tags: TagList, verified: int | None) -> Mapping[int, str]: ...


class Collector:
    """Plans what goes, and removes it.

    Args:
        store: The store.
        keeping: Which commits stay.
        of_journal: What becomes of the journal's entries, with these commits staying; a writer trims its own.
        grace: Seconds that a save takes at most: what no commit needs is left over after that.
        now: Seconds since 1970.
    """

    def __init__(
        self,
        store: Store,
        keeping: Keeping,
        of_journal: "Callable[[History, set[int]], Iterable[Verdict]]" = lambda history, kept: (),
        grace: float = GRACE,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._keeping = keeping
        self._of_journal = of_journal
        self._grace = grace
        self._now = now
        self._log = CommitLog(store)
        self._contents: dict[str, dict[str, int]] = {}

    def plan(self, *, writer_at: int | None = None, verified: int | None = None) -> Plan:
        """What goes and what stays, as things are now; nothing is changed.

        Args:
            writer_at: For the writer: the number that it wrote last. None for anybody else.
            verified: The newest commit that was read back whole, which stays.

        Raises:
            UnsupportedFormat: something was written in a newer format.
            StoreError: the store did not answer.
        """
        listed = [*self._store.list("parts"), *self._store.list("packs")]  # before the commits that may name more
        history, tags = self._log.history(), Tags(self._store).all()
        if writer_at is not None and history.last != writer_at:
            return Plan((), (), (), writer_at)
        kept = {**_continued(history), **self._keeping.kept(history, tags, verified)}
        needs, broken = self._needs([commit for commit in history.commits if commit.sequence in kept])
        unsure = sorted({*broken} | (kept.keys() & history.damaged.keys()))
        warnings = [f"{self._store.url}: {error}" for error in broken.values()]
        if history.commits and not any(objects.keys() <= {*listed} for objects in needs.values()):
            warnings.append(f"{self._store.url}: of the snapshots that would stay none is whole, so that nothing goes")
            kept = {**dict.fromkeys([*_sequences(history), *history.damaged], "no newer snapshot is whole"), **kept}
            unsure = unsure or _sequences(history)[-1:]
        elif unsure:
            damaged = commit_name(unsure[-1])
            warnings.append(f"{self._store.url}: objects are not cleaned up while {damaged} stays, which is damaged")
        verdicts = [
            *_of_commits(history, kept),
            *_of_tags(tags),
            *self._of_objects(listed, needs, history, unsure, young=writer_at is None),
            *self._of_journal(history, {*kept}),
        ]
        going = tuple(commit for commit in history.commits if commit.sequence not in kept)
        return Plan(tuple(verdicts), tuple(warnings), going, writer_at)

    def carry_out(self, plan: Plan) -> list[str]:
        """Remove what goes; the names of what went. Commits that were tagged meanwhile stay.

        Raises:
            StoreError: the store did not answer.
        """
        removed: list[str] = []
        commits = [verdict.name for verdict in plan.going if verdict.name.startswith("commits/")]
        others = [verdict.name for verdict in plan.going if not verdict.name.startswith("commits/")]
        for name in self._while_ours(commits, plan.writer_at):
            self._store.delete(name)
            removed.append(name)
        if rescued := self._put_back(plan.commits):
            return [name for name in removed if name not in rescued]
        for name in self._while_ours(others, plan.writer_at):
            self._store.delete(name)
            removed.append(name)
        epochs = {name.rpartition("/")[0] for name in removed if name.startswith("journal/")}
        for folder in (*sorted(epochs), *sorted({epoch.rpartition("/")[0] for epoch in epochs})):
            self._store.remove_folder(folder)
        return removed

    def _needs(self, commits: Iterable[Commit]) -> tuple[dict[int, dict[str, int]], dict[int, DamagedCheckpoint]]:
        """The objects of each commit with their sizes; and why that is not known of the others that are still there."""
        needs: dict[int, dict[str, int]] = {}
        broken: dict[int, DamagedCheckpoint] = {}
        contents: dict[str, dict[str, int]] = {}
        for commit in commits:
            try:
                for part in commit.parts:
                    contents[part.name] = self._contents.get(part.name) or {
                        part.name: part.size,
                        **{pack.name: pack.size for pack in read_part(self._store, part).packs},
                    }
            except DamagedCheckpoint as error:
                if self._log.holds(commit.sequence):
                    broken[commit.sequence] = error
            else:
                needs[commit.sequence] = {k: v for part in commit.parts for k, v in contents[part.name].items()}
        self._contents = contents
        return needs, broken

    def _of_objects(
        self,
        listed: list[str],
        needs: Mapping[int, Mapping[str, int]],
        history: History,
        unsure: list[int],
        *,
        young: bool,
    ) -> Iterator[Verdict]:
        update = {commit.sequence: commit.update for commit in history.commits}
        needed = {name: (sequence, size) for sequence in sorted(needs) for name, size in needs[sequence].items()}
        newest = self._time(history.commits[-1].name) if young and history.commits else None
        for name in listed:
            if name in needed:
                sequence, size = needed[name]
                yield Verdict(name, False, f"update {update[sequence]} ({commit_name(sequence)}) needs it", size)
            elif unsure:
                yield Verdict(name, False, f"{commit_name(unsure[-1])} is damaged and may need it")
            elif young:
                yield self._of_orphan(name, newest)
            else:
                yield Verdict(name, True, "no snapshot that stays needs it")

    def _of_orphan(self, name: str, newest: float | None) -> Verdict:
        written = self._time(name)
        if written is None:
            return Verdict(name, False, "no snapshot that stays needs it, and the store does not tell how old it is")
        age = self._now() - written
        size = self._size(name)
        if (newest is None or written >= newest - _COARSE) and age < self._grace:
            return Verdict(name, False, "newer than the newest commit: a save may be under way", size)
        return Verdict(name, True, "no snapshot that stays needs it", size)

    def _time(self, name: str) -> float | None:
        try:
            return self._store.modified(name)
        except MissingObject:
            return None

    def _size(self, name: str) -> int | None:
        try:
            return self._store.size(name)
        except MissingObject:
            return None

    def _while_ours(self, names: list[str], writer_at: int | None) -> Iterator[str]:
        """The names, as long as the writer that cleans up has not been replaced."""
        checked = -_FRESH
        for name in names:
            if writer_at is not None and time.monotonic() - checked > _FRESH:
                if self._log.sequences()[-1:] != [writer_at]:
                    return
                checked = time.monotonic()
            yield name

    def _put_back(self, commits: tuple[Commit, ...]) -> set[str]:
        """Write again the commits that got a tag while they were being removed; all that they need is still there."""
        if not commits:
            return set()
        tagged = {tag.sequence for tag in Tags(self._store).all().tags}
        rescued = [commit for commit in commits if commit.sequence in tagged]
        for commit in rescued:
            self._store.put_new(commit.name, commit.to_bytes())
        return {commit.name for commit in rescued}


def _continued(history: History) -> dict[int, str]:
    """The commit that the newest writer goes on from, until it has committed: its next snapshot may build on that."""
    newest = history.epochs[-1] if history.epochs else None
    if newest is None or newest.seals is None or any(commit.epoch == newest.sequence for commit in history.commits):
        return {}
    if newest.seals.base not in {*_sequences(history), *history.damaged}:
        return {}
    return {newest.seals.base: f"writer {newest.writer.identity!r} goes on from it"}


def _sequences(history: History) -> list[int]:
    return [commit.sequence for commit in history.commits]


def _of_commits(history: History, kept: Mapping[int, str]) -> Iterator[Verdict]:
    commits = {*_sequences(history)}
    for sequence in sorted({*commits, *history.damaged, *(epoch.sequence for epoch in history.epochs)}):
        name = commit_name(sequence)
        if sequence in kept:
            yield Verdict(name, False, kept[sequence])
        elif sequence in commits:
            yield Verdict(name, True, "nothing asks to keep it")
        elif sequence in history.damaged:
            yield Verdict(name, False, f"perhaps a writer's claim, which keeps others out: {history.damaged[sequence]}")
        else:
            yield Verdict(name, False, "a writer's claim, which keeps earlier writers out")


def _of_tags(tags: TagList) -> Iterator[Verdict]:
    for name in sorted([*(tag.name for tag in tags.tags), *tags.damaged]):
        yield Verdict(f"tags/{name}", False, "tags stay until they are deleted")
