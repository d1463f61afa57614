"""Reading everything that a store holds, and telling what is damaged and what that costs."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from gradwire.checkpoint.commit import Commit, commit_name
from gradwire.checkpoint.commits import CommitLog, History
from gradwire.checkpoint.errors import DamagedCheckpoint, MissingObject
from gradwire.checkpoint.journal import LONGEST_ENTRY, Place, prove_journal_entry
from gradwire.checkpoint.journal_reader import entry_names
from gradwire.checkpoint.outline import Named, Outline, outline_of
from gradwire.checkpoint.packs import PackRef
from gradwire.checkpoint.snapshot import Part, PartRef, read_part
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import TagList, Tags
from gradwire.checkpoint.verification import damages, uses_of

_MOST_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """Something that is damaged.

    Args:
        name: The object.
        problem: What was found.
        lost: What that costs.
        commits: Numbers of the commits that cannot be restored because of it.
    """

    name: str
    problem: str
    lost: str
    commits: tuple[int, ...] = ()


@dataclass(frozen=True)
class Report:
    """What a store holds.

    Args:
        url: Of the store.
        findings: What is damaged.
        whole: The commits that can be restored, oldest first.
        leftovers: Parts and packs that no commit names; they are no damage, and may be of a save under way.
        checked: Number of objects read, by folder.
        size: Bytes of the packs read.
    """

    url: str
    findings: tuple[Finding, ...]
    whole: tuple[Commit, ...]
    leftovers: tuple[str, ...]
    checked: dict[str, int]
    size: int

    @property
    def sound(self) -> bool:
        return not self.findings


def check(store: Store, progress: Callable[[int], None] = lambda size: None) -> Report:
    """Read every commit, part, pack, journal entry and tag of a store, and prove them. Nothing is changed.

    What others remove meanwhile is no damage.

    Args:
        store: The store.
        progress: Told the bytes of each pack that was read.

    Raises:
        UnsupportedFormat: something was written in a newer format.
        StoreError: the store did not answer.
    """
    return _Check(store, progress).run()


class _Check:
    """One reading of a store."""

    def __init__(self, store: Store, progress: Callable[[int], None]) -> None:
        self._store = store
        self._progress = progress
        self._findings: list[Finding] = []
        self._broken: set[int] = set()
        self._size = 0

    def run(self) -> Report:
        store, log = self._store, CommitLog(self._store)
        listed = [*store.list("parts"), *store.list("packs")]  # before the commits that may name more
        history, tags = log.history(), Tags(store).all()
        self._check_commits(history)
        outlines, parts = self._check_parts(history)
        packs = self._check_packs(history, outlines)
        entries = self._check_journals(history)
        self._check_tags(history, tags)
        present = {*log.sequences()}
        return Report(
            store.url,
            tuple(finding for finding in self._findings if not finding.commits or present & {*finding.commits}),
            tuple(each for each in history.commits if each.sequence in present - self._broken),
            self._left(listed, history, outlines),
            {
                "commits": len(history.commits) + len(history.epochs) + len(history.damaged),
                "parts": parts,
                "packs": packs,
                "journal": entries,
                "tags": len(tags.tags) + len(tags.damaged),
            },
            self._size,
        )

    def _find(self, name: str, problem: str, lost: str, commits: tuple[int, ...] = ()) -> None:
        self._findings.append(Finding(name, problem.removeprefix(f"{self._store.url}: "), lost, commits))
        self._broken |= {*commits}

    def _check_commits(self, history: History) -> None:
        for sequence, error in history.damaged.items():
            self._find(commit_name(sequence), str(error), "a snapshot, or a claim of a writer", (sequence,))
        digests = {commit.sequence: commit.digest for commit in history.commits}
        for commit in history.commits:
            parent = commit.parent
            if parent is not None and digests.get(parent.sequence, parent.digest) != parent.digest:
                self._find(
                    commit.name,
                    f"it descends from another commit than {commit_name(parent.sequence)} is",
                    f"what led to update {commit.update}; the snapshot itself can be restored",
                )

    def _check_parts(self, history: History) -> tuple[dict[int, Outline], int]:
        users: dict[PartRef, list[Commit]] = defaultdict(list)
        for commit in history.commits:
            for ref in commit.parts:
                users[ref].append(commit)
        parts: dict[PartRef, Part] = {}
        for ref, commits in users.items():
            try:
                parts[ref] = read_part(self._store, ref)
            except DamagedCheckpoint as error:
                self._find(ref.name, str(error), _updates(commits), _numbers(commits))
        outlines: dict[int, Outline] = {}
        for commit in history.commits:
            if all(ref in parts for ref in commit.parts):
                try:
                    outlines[commit.sequence] = outline_of([parts[ref] for ref in commit.parts], commit.name)
                except DamagedCheckpoint as error:
                    self._find(commit.name, str(error), _updates([commit]), (commit.sequence,))
        return outlines, len({ref.name for ref in users})

    def _check_packs(self, history: History, outlines: dict[int, Outline]) -> int:
        commits = {commit.sequence: commit for commit in history.commits}
        users: dict[PackRef, list[Commit]] = defaultdict(list)
        for sequence, outline in outlines.items():
            for pack in {pack for part in outline.parts for pack in part.packs}:
                users[pack].append(commits[sequence])
        for damage in damages(self._store, uses_of(outlines.values()), self._note_read):
            affected = users[damage.pack]
            lost = f"{_updates(affected)}: {_tensors(damage.lost)}" if damage.lost else "nothing that is used"
            self._find(damage.pack.name, damage.problem, lost, _numbers(affected) if damage.lost else ())
        return len({pack.name for pack in users})

    @staticmethod
    def _left(listed: list[str], history: History, outlines: dict[int, Outline]) -> tuple[str, ...]:
        if history.damaged or len(outlines) < len(history.commits):
            return ()  # what cannot be read may need them
        parts = {ref.name for commit in history.commits for ref in commit.parts}
        packs = {pack.name for outline in outlines.values() for part in outline.parts for pack in part.packs}
        return tuple(name for name in listed if name not in parts | packs)

    def _note_read(self, size: int) -> None:
        self._size += size
        self._progress(size)

    def _check_journals(self, history: History) -> int:
        updates = {commit.sequence: commit.update for commit in history.commits}
        count = 0
        for name in entry_names(self._store):
            count += 1
            place = Place.of(name)
            try:
                data = self._store.get(name, LONGEST_ENTRY)
                prove_journal_entry(data, place, f"{self._store.url}: {name}")
            except MissingObject:
                continue  # trimmed meanwhile
            except DamagedCheckpoint as error:
                base = updates.get(place.base)
                since = f"; update {base} and the snapshots after it are not affected" if base is not None else ""
                self._find(name, str(error), f"update {place.update} and those journalled on it{since}")
        return count

    def _check_tags(self, history: History, tags: TagList) -> None:
        for name, error in tags.damaged.items():
            self._find(f"tags/{name}", str(error), f"the name {name!r} of some snapshot")
        digests = {commit.sequence: commit.digest for commit in history.commits}
        for tag in tags.tags:
            if tag.sequence not in history.damaged and digests.get(tag.sequence) != tag.digest:
                found = "another commit" if tag.sequence in digests else "no commit"
                self._find(
                    f"tags/{tag.name}",
                    f"the tag {tag.name!r} names {commit_name(tag.sequence)}, and there is {found} of that number",
                    f"the snapshot that {tag.name!r} named",
                )


def _numbers(commits: list[Commit]) -> tuple[int, ...]:
    return tuple(commit.sequence for commit in commits)


def _updates(commits: list[Commit]) -> str:
    updates = ", ".join(str(commit.update) for commit in commits)
    return f"the snapshot{'s' if len(commits) > 1 else ''} of update{'s' if len(commits) > 1 else ''} {updates}"


def _tensors(tensors: tuple[Named, ...]) -> str:
    names = list(dict.fromkeys(tensor.name for tensor in tensors))
    more = f" and {len(names) - _MOST_NAMED} more tensors" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"
