"""The journal of a run with one tier or several: it is in the last one, and goes on from what any of them has."""

from collections.abc import Callable

from gradwire.checkpoint.branches import at_most, lines
from gradwire.checkpoint.commit import Commit, parse_commit
from gradwire.checkpoint.errors import DamagedCheckpoint, NoCheckpoint
from gradwire.checkpoint.history import read_log, spans
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.mirror import Mirror
from gradwire.checkpoint.ranks import Ranks, raising
from gradwire.checkpoint.recovery import Recovery
from gradwire.checkpoint.restoring import Restorer
from gradwire.checkpoint.tiers import Tiers


class Journals:
    """Finds what was journalled, and where the next journal goes. All ranks call each method.

    Args:
        tiers: The stores.
        mirror: Gets snapshots to the last one.
        restorer: Finds snapshots.
        ranks: Who asks; only the first one lists stores.
    """

    def __init__(self, tiers: Tiers, mirror: Mirror, restorer: Restorer, ranks: Ranks) -> None:
        self._tiers = tiers
        self._mirror = mirror
        self._restorer = restorer
        self._ranks = ranks

    def reach(self) -> list[tuple[int, int]]:
        """As Checkpointer.reach."""
        found = raising(lambda: self._ranks.on_first(self._reach))
        return [(int(update), int(last)) for update, last in found]

    def base_of(self, update: int) -> int:
        """As Checkpointer.base_of."""
        return int(raising(lambda: self._ranks.on_first(lambda: self._base_of(update))))

    def recovery(self, commit: Commit) -> Recovery:
        """What was journalled after a snapshot that was restored."""
        home = self._told(lambda: self._tiers.base_of(commit)) if self._tiers.hops else commit
        return Recovery(self._tiers.last, self._ranks, commit, home)

    def continue_at(self, recovery: Recovery, update: int) -> None:
        """Go on from a journalled update that was replayed."""
        assert recovery.home is not None, "nothing was replayed"
        self._tiers.continue_at(recovery.home, recovery.seal(update), update)

    def home(self, base: Commit, after: int) -> tuple[Commit, int]:
        """Where a journal of what follows an update goes, once every tier is claimed.

        Args:
            base: What was restored or saved.
            after: The update.

        Returns:
            A commit of the last tier, which may have to get there first, and the epoch.
        """
        if self._tiers.hops:
            home = self._told(lambda: self._tiers.home_of(base, after))
            if home is None:
                self._mirror.finish()
                home = self._mirror.arrived
            assert home is not None, "what was claimed is copied"
            base = home
        return base, raising(lambda: self._ranks.on_first(lambda: self._tiers.epoch))

    def _told(self, find: Callable[[], Commit | None]) -> Commit | None:
        """A commit that the first rank finds, on every rank."""

        def told() -> tuple[int, str] | None:
            commit = find()
            return None if commit is None else (commit.sequence, commit.to_bytes().decode("ascii"))

        found = raising(lambda: self._ranks.on_first(told))
        return None if found is None else parse_commit(found[1].encode("ascii"), found[0], self._tiers.last.url)

    def _reach(self) -> list[tuple[int, int]]:
        *nearer, last = lines(self._restorer.histories(), self._restorer.journalled())
        ends = {commit.sequence: commit.update + len(JournalReader(self._tiers.last, commit).names) for commit in last}
        found = {commit.update: ends[commit.sequence] for commit in last}
        for commit in (commit for line in nearer for commit in line):
            base = at_most(last, commit.update)  # the journal that goes on from it there
            found.setdefault(commit.update, max(commit.update, ends[base.sequence] if base else 0))
        return sorted(found.items(), reverse=True)

    def _base_of(self, update: int) -> int:
        for first, last in self._reach():
            if first <= update <= last:
                return first
        *_, line = lines(self._restorer.histories(), self._restorer.journalled())
        before = at_most(line, update)
        problem = None if before is None else JournalReader(self._tiers.last, before).problem
        updates = read_log(self._tiers.last).updates
        message = f"{self._tiers.last.url} cannot restore update {update}; it can restore {spans(updates)}"
        if problem is not None:
            raise DamagedCheckpoint(f"{message}. {problem}")
        raise NoCheckpoint(message)
