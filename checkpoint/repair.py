"""Removing from a store what cannot be used."""

from gradwire.checkpoint.commit import commit_name
from gradwire.checkpoint.epochs import CommitWriter
from gradwire.checkpoint.fsck import Report
from gradwire.checkpoint.garbage import Collector
from gradwire.checkpoint.journal_garbage import JournalGarbage
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.retention import KeepAll
from gradwire.checkpoint.store import Store

_WHO = "gradwire checkpoint fsck --repair"


def repair(store: Store, report: Report) -> list[str]:
    """Remove what cannot be used: commits that cannot be restored, damaged journal entries and tags that name nothing,
    and then all that no whole snapshot needs. The names of what went.

    The store is taken over first, so that a writer that is still at work stops at its next commit instead of relying on
    what goes. Where no snapshot is whole, nothing is removed: what is left of the others may be worth something.

    Args:
        store: The store.
        report: What `check` found in it.

    Raises:
        StoreError: the store did not answer.
    """
    if (report.sound and not report.leftovers) or (report.findings and not report.whole):
        return []
    writer = CommitWriter(store, _WHO)
    if report.whole:
        journal = JournalReader(store, report.whole[-1])
        last = max(journal.updates(), default=report.whole[-1].update)
        journal.make_durable(last)
        writer.continue_from(report.whole[-1], journal.seal(last))
    writer.claim()
    broken = sorted({sequence for finding in report.findings for sequence in finding.commits})
    names = [commit_name(sequence) for sequence in broken]
    names += [each.name for each in report.findings if each.name.startswith(("journal/", "tags/"))]
    for name in names:
        store.delete(name)
    collector = Collector(store, KeepAll(), JournalGarbage(store))
    return [*names, *collector.carry_out(collector.plan(writer_at=writer.epoch))]
