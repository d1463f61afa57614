"""Every update of a store that can be restored, and what is known of it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.commits import CommitLog, History
from gradwire.checkpoint.errors import DamagedCheckpoint
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.outline import read_outline
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tags

Branch = Literal["present", "abandoned"]


@dataclass(frozen=True)
class Restorable:
    """A snapshot, and the updates that were journalled after it.

    Args:
        commit: Its commit.
        branch: `abandoned` where a later writer went back to before it.
        tags: Names of its tags.
        size: Bytes of its tensors; None where a part of it cannot be read.
        stored: Bytes of the objects that it needs, shared ones included, likewise.
        added: Bytes of those that no earlier snapshot needs, likewise.
        journalled: First and last of the updates journalled after it, up to the next snapshot; None without any.
        problem: Why it cannot be restored, as far as its commit and parts tell; packs are not read.
    """

    commit: Commit
    branch: Branch
    tags: tuple[str, ...]
    size: int | None
    stored: int | None
    added: int | None
    journalled: tuple[int, int] | None
    problem: str | None


@dataclass(frozen=True)
class Log:
    """What a store holds.

    Args:
        url: Of the store.
        entries: Its snapshots, oldest first.
        damaged: Commits that cannot be read, by number: what was found.
    """

    url: str
    entries: tuple[Restorable, ...]
    damaged: Mapping[int, str]

    @property
    def updates(self) -> list[int]:
        """Every update of the present branch that can be restored, rising."""
        found: set[int] = set()
        for entry in self.entries:
            if entry.branch == "present" and entry.problem is None:
                found |= {
                    entry.commit.update,
                    *(range(entry.journalled[0], entry.journalled[1] + 1) if entry.journalled else ()),
                }
        return sorted(found)


def read_log(store: Store) -> Log:
    """What a store holds: commits and parts are read, packs and journal entries only listed.

    Raises:
        UnsupportedFormat: something was written in a newer format.
        StoreError: the store did not answer.
    """
    history = CommitLog(store).history()
    return Log(store.url, tuple(_entries(store, history)), {n: str(error) for n, error in history.damaged.items()})


def _entries(store: Store, history: History) -> Iterator[Restorable]:
    tags = Tags(store).all()
    present = {commit.sequence for commit in history.ancestry}
    seen: set[str] = set()
    packs = {*store.list("packs")}
    has_journal = bool(store.folders("journal"))
    for commit in history.commits:
        size = stored = added = problem = None
        try:
            outline = read_outline(store, commit)
        except DamagedCheckpoint as error:
            if not CommitLog(store).holds(commit.sequence):
                continue  # removed meanwhile
            problem = str(error).removeprefix(f"{store.url}: ")
        else:
            needed = {pack.name: pack.size for part in outline.parts for pack in part.packs}
            if missing := sorted(needed.keys() - packs):
                problem = f"{missing[0]} is missing"
            needed |= {ref.name: ref.size for ref in commit.parts}
            size = sum(tensor.stored.nbytes for tensor in outline.tensors)
            stored = sum(needed.values())
            added = sum(size for name, size in needed.items() if name not in seen)
            seen |= needed.keys()
        yield Restorable(
            commit,
            "present" if commit.sequence in present else "abandoned",
            tags.names(commit.sequence),
            size,
            stored,
            added,
            _journalled(store, history, commit) if has_journal and commit.sequence in present else None,
            problem,
        )


def _journalled(store: Store, history: History, commit: Commit) -> tuple[int, int] | None:
    updates = list(JournalReader(store, commit).names)
    following = next((each.update for each in history.ancestry if each.sequence > commit.sequence), None)
    updates = [update for update in updates if following is None or update < following]
    return (updates[0], updates[-1]) if updates else None


def spans(updates: Iterable[int]) -> str:
    """Rising numbers for people, runs of them as `first to last`; `nothing` where there are none."""
    runs: list[list[int]] = []
    for update in updates:
        if runs and update == runs[-1][1] + 1:
            runs[-1][1] = update
        else:
            runs.append([update, update])
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in runs) or "nothing"
