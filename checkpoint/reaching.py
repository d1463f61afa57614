"""How far the journal leads from each snapshot of a run."""

from dataclasses import dataclass

from gradwire.checkpoint.branches import at_most, lines
from gradwire.checkpoint.errors import NoCheckpoint
from gradwire.checkpoint.history import read_log, spans
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.restoring import Restorer
from gradwire.checkpoint.store import Store


@dataclass(frozen=True)
class Reach:
    """The snapshots of the present branch, and the journal after them. For one rank.

    Args:
        restorer: Finds them.
        last: The tier that has the journal.
    """

    restorer: Restorer
    last: Store

    def all(self) -> list[tuple[int, int]]:
        """Each snapshot's update with the last one that the journal leads to from there, newest first.

        Raises:
            StoreError: a store cannot be read.
        """
        found = lines(self.restorer.histories())
        ends = {commit.sequence: commit.update + len(JournalReader(self.last, commit).names) for commit in found[-1]}
        updates = {commit.update: ends[commit.sequence] for commit in found[-1]}
        for commit in (commit for line in found[:-1] for commit in line):
            base = at_most(found[-1], commit.update)  # it has no journal of its own in a nearer tier
            updates.setdefault(commit.update, max(commit.update, ends[base.sequence] if base else 0))
        return sorted(updates.items(), reverse=True)

    def base_of(self, update: int) -> int:
        """The update of the newest snapshot from which the journal leads to an update, or that is of it.

        Raises:
            NoCheckpoint: there is none.
            StoreError: a store cannot be read.
        """
        for first, last in self.all():
            if first <= update <= last:
                return first
        updates = read_log(self.last).updates
        raise NoCheckpoint(f"{self.last.url} cannot restore update {update}; it can restore {spans(updates)}")
