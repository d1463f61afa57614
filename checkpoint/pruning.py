"""Pruning by somebody who is not the store's writer."""

from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.garbage import GRACE, Collector
from gradwire.checkpoint.journal_garbage import JournalGarbage
from gradwire.checkpoint.retention import Retention
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tags
from gradwire.checkpoint.verdicts import Plan
from gradwire.checkpoint.verification import newest_whole


def plan_prune(store: Store, retention: Retention, grace: float = GRACE) -> tuple[Collector, Plan]:
    """What goes of a store, and who removes it; a whole snapshot stays in any case, so the newest are read back first.

    Args:
        store: The store.
        retention: Which commits stay.
        grace: Seconds that a save under way may take.

    Raises:
        UnsupportedFormat: something was written in a newer format.
        StoreError: the store did not answer.
    """
    history = CommitLog(store).history()
    kept = retention.kept(history, Tags(store).all())
    newest_first = sorted(history.commits, key=lambda commit: (commit.sequence in kept, commit.sequence), reverse=True)
    whole = newest_whole(store, newest_first)
    collector = Collector(store, retention, JournalGarbage(store), grace)
    return collector, collector.plan(verified=None if whole is None else whole.sequence)
