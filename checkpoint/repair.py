"""Removing from a store what cannot be used."""

import logging
from collections.abc import Collection
from dataclasses import replace

from gradwire.checkpoint.commit import Commit, Seal, commit_name
from gradwire.checkpoint.commits import CommitLog, History
from gradwire.checkpoint.epochs import CommitWriter
from gradwire.checkpoint.errors import NoCheckpoint, StoreUnavailable
from gradwire.checkpoint.fsck import Report
from gradwire.checkpoint.garbage import Collector
from gradwire.checkpoint.journal_garbage import JournalGarbage
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.retention import KeepAll
from gradwire.checkpoint.store import Store

log = logging.getLogger(__name__)
_WHO = "gradwire checkpoint fsck --repair"


def repair(store: Store, report: Report) -> list[str]:
    """Remove what cannot be used: commits that cannot be restored, damaged journal entries and tags that name nothing,
    and then all that no whole snapshot needs. The names of what went.

    The store is taken over first, so that a writer that is still at work stops at its next commit instead of relying on
    what goes. The claim goes on from the newest whole snapshot of the present branch, with what is journalled after it.
    A damaged document in `commits/` becomes a claim that says nothing: it may have been one, and then its number must
    stay taken. Where no snapshot is whole, nothing is removed: what is left of the others may be worth something.

    Args:
        store: The store.
        report: What `check` found in it.

    Raises:
        NoCheckpoint: all whole snapshots were removed since it was checked.
        StoreError: the store did not answer.
    """
    if (report.sound and not report.leftovers) or (report.findings and not report.whole):
        return []
    broken = {sequence for finding in report.findings for sequence in finding.commits}

    def going_on(history: History) -> tuple[Commit, Seal]:
        for number, error in history.damaged.items():
            if number not in broken:
                raise StoreUnavailable(f"{error}; it could be read when the store was checked: check it again")
        newest = _newest(history, broken)
        journal = JournalReader(store, newest)
        last = max(journal.updates(), default=newest.update)
        journal.make_durable(last)
        return newest, journal.seal(last)

    writer = CommitWriter(store, _WHO, repairs=True)
    claim = writer.claim(going_on=going_on if report.whole else None)
    assert claim is not None, "a new writer claims"
    history = CommitLog(store).history()
    damaged = sorted(broken & {*history.damaged})
    for sequence in damaged:
        store.replace(commit_name(sequence), replace(claim, sequence=sequence, seals=None).to_bytes())
    names = [commit_name(sequence) for sequence in sorted(broken - {*damaged})]
    names += [each.name for each in report.findings if each.name.startswith(("journal/", "tags/"))]
    for name in names:
        store.delete(name)
    names += map(commit_name, damaged)
    collector = Collector(store, KeepAll(), JournalGarbage(store))
    return [*names, *collector.carry_out(collector.plan(writer_at=writer.epoch))]


def _newest(history: History, broken: Collection[int]) -> Commit:
    """The newest commit of the present branch that is not broken; of another one where that has none."""
    anywhere = [commit for commit in history.commits if commit.sequence not in broken]
    present = [commit for commit in history.ancestry if commit.sequence not in broken]
    if not anywhere:
        raise NoCheckpoint(f"{history.url}: the snapshots that were whole have been removed meanwhile; check again")
    if not present:
        log.warning(
            "%s: of the present branch no snapshot is whole; update %d is of one that was gone back on",
            history.url,
            anywhere[-1].update,
        )
    return (present or anywhere)[-1]
