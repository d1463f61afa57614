"""What a writer removes from its store after each of its commits."""

import logging

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.errors import CheckpointError
from gradwire.checkpoint.garbage import Keeping
from gradwire.checkpoint.journal_trim import trim
from gradwire.checkpoint.retention import Pruner
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.verification import verify

log = logging.getLogger(__name__)


class Cleaner:
    """Removes old snapshots, and journals of snapshots that are old.

    Args:
        store: The writer's store.
        keeping: Which snapshots stay.
        keep_journal: Newest commits of which the journal stays.
    """

    def __init__(self, store: Store, keeping: Keeping, keep_journal: int) -> None:
        self._store = store
        self._pruner = Pruner(store, keeping)
        self._keep_journal = keep_journal

    def clean(self, commit: Commit) -> None:
        """Clean up after the commit that was just written; failures are logged."""
        try:
            self._pruner.prune(commit.sequence)
            trim(self._store, CommitLog(self._store).history().ancestry[-self._keep_journal :], self._verify)
        except CheckpointError as error:
            log.warning("update %d was saved, but old snapshots were not removed: %s", commit.update, error)

    def _verify(self, commit: Commit) -> None:
        verify(self._store, commit)
        self._pruner.note_verified(commit)
