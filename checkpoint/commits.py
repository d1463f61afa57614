"""The sequence of commits of a store: reading it, and finding a snapshot in it."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from gradwire.checkpoint.ancestry import leads_to
from gradwire.checkpoint.commit import LONGEST_COMMIT, Commit, Epoch, commit_name, parse_entry
from gradwire.checkpoint.errors import DamagedCheckpoint, MissingObject, NoCheckpoint
from gradwire.checkpoint.store import Store

_READINGS = 3


@dataclass(frozen=True)
class History:
    """The commits of a store at one moment.

    Args:
        url: Of the store.
        commits: The readable ones, oldest first.
        damaged: What is wrong with each of the others, by its number.
        last: Highest number taken; 0 in an empty store.
        epochs: The readable claims, oldest first.
    """

    url: str
    commits: tuple[Commit, ...]
    damaged: dict[int, DamagedCheckpoint]
    last: int
    epochs: tuple[Epoch, ...] = ()

    @property
    def newest(self) -> Commit | None:
        """The commit at the end of the present branch; None where there is none.

        That is the newest one, unless there is damage above it, or a repair has claimed since: then it may be of a
        branch that was gone back on, and the newest claim above it and below the damage, or of a repair, decides: what
        its writer went on from is looked at in the same way.
        """
        return self.newest_until(self.last)

    def newest_until(self, bound: int) -> Commit | None:
        """What `newest` was, as far as can be told now, when the numbers ended at `bound`."""
        while True:
            commit = next((each for each in reversed(self.commits) if each.sequence <= bound), None)
            above = range(0 if commit is None else commit.sequence + 1, bound + 1)
            damage = max((number for number in self.damaged if number in above), default=0)
            claims = [each for each in self.epochs if each.sequence in above and each.seals]
            deciding = [each.seals for each in claims if each.repairs or each.sequence < damage]
            if not deciding or deciding[-1] is None:
                return commit
            bound = deciding[-1].base

    @property
    def ancestry(self) -> tuple[Commit, ...]:
        """`newest` and those that led to it, oldest first; commits that a rollback abandoned are left out."""
        newest = self.newest
        return (
            ()
            if newest is None
            else tuple(commit for commit in self.commits if leads_to(commit.sequence, newest.ancestry))
        )

    def at(self, update: int) -> Commit:
        """The newest commit of an update; errors as of `of`."""
        return self.of(update)[0]

    def of(self, update: int) -> tuple[Commit, ...]:
        """The commits of an update, of those that led to the newest, newest first.

        There are several where a branch began with a snapshot of the update that it went back to.

        Raises:
            DamagedCheckpoint: there is none, and there are commits that cannot be read.
            NoCheckpoint: there is none.
        """
        found = [commit for commit in reversed(self.ancestry) if commit.update == update]
        if found:
            return tuple(found)
        have = ", ".join(str(commit.update) for commit in self.ancestry) or "none"
        if self.damaged:
            raise DamagedCheckpoint(
                f"{self.url} has no readable snapshot of update {update}; {self._damage()}; readable updates: {have}"
            )
        abandoned = any(commit.update == update for commit in self.commits)
        hint = " (one was abandoned by a rollback)" if abandoned else ""
        raise NoCheckpoint(f"{self.url} has no snapshot of update {update}{hint}; it has updates: {have}")

    def candidates(self) -> tuple[Commit, ...]:
        """The snapshots to try, newest first.

        Raises:
            DamagedCheckpoint: there are commits, and none can be read.
            NoCheckpoint: there are none.
        """
        if self.commits:
            return tuple(reversed(self.ancestry))
        if self.damaged:
            raise DamagedCheckpoint(f"{self.url} has no readable snapshot: {self._damage()}")
        raise NoCheckpoint(f"{self.url} holds no snapshot; check the URL, or save one first")

    def _damage(self) -> str:
        return "; ".join(str(error) for error in self.damaged.values())


class CommitLog:
    """Reads the commits of a store.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def sequences(self) -> list[int]:
        """The numbers taken, rising; a listing that lags behind is made up for by looking at the numbers that follow.

        Raises:
            StoreError: the listing failed.
        """
        found = [int(PurePosixPath(name).name) for name in self._store.list("commits")]
        following = found[-1] + 1 if found else 1
        while self._is_there(following):
            found.append(following)
            following += 1
        return found

    def _is_there(self, sequence: int) -> bool:
        try:
            self._store.size(commit_name(sequence))
        except DamagedCheckpoint:  # missing, or a number that no object can have
            return False
        return True

    def read(self, sequence: int) -> Commit | Epoch:
        """The commit or epoch of a number.

        Raises:
            MissingObject: there is none.
            DamagedCheckpoint: it is altered.
            UnsupportedFormat: it was written in a newer format.
            StoreError: it could not be read.
        """
        name = commit_name(sequence)
        return parse_entry(self._store.get(name, LONGEST_COMMIT), sequence, f"{self._store.url}: {name}")

    def history(self) -> History:
        """All commits. One that retention removes meanwhile is left out.

        Raises:
            UnsupportedFormat: one was written in a newer format.
            StoreError: the listing failed, or a commit could not be read.
        """
        for _ in range(_READINGS):
            sequences = self.sequences()
            entries, missing = self._entries(sequences)
            if not missing:  # or else there are newer ones, which an old listing does not show
                break
        commits = [entry for entry in entries.values() if isinstance(entry, Commit)]
        epochs = [entry for entry in entries.values() if isinstance(entry, Epoch)]
        damaged = {number: entry for number, entry in entries.items() if isinstance(entry, DamagedCheckpoint)}
        return History(self._store.url, tuple(commits), damaged, sequences[-1] if sequences else 0, tuple(epochs))

    def _entries(self, sequences: list[int]) -> tuple[dict[int, Commit | Epoch | DamagedCheckpoint], bool]:
        """What stands at each number, and whether something that was listed is gone."""
        entries: dict[int, Commit | Epoch | DamagedCheckpoint] = {}
        missing = False
        for sequence in sequences:
            try:
                entries[sequence] = self.read(sequence)
            except MissingObject:
                missing = True
            except DamagedCheckpoint as error:
                entries[sequence] = error
        return entries, missing

    def holds(self, sequence: int) -> bool:
        """Whether a number is taken.

        Raises:
            StoreError: the listing failed.
        """
        return sequence in self.sequences()
