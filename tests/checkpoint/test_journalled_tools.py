"""The journal in the log, in forks, in fsck and in what is pruned."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gradwire.checkpoint import Checkpointer, DamagedCheckpoint, NoCheckpoint, StoreError
from gradwire.checkpoint.commit import Seal
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.fork import fork
from gradwire.checkpoint.fsck import check
from gradwire.checkpoint.history import read_log
from gradwire.checkpoint.journal import Entry, Place, entry_bytes
from gradwire.checkpoint.journal_reader import JournalReader, entry_names
from gradwire.checkpoint.outline import read_outline
from gradwire.checkpoint.pruning import plan_prune
from gradwire.checkpoint.repair import repair
from gradwire.checkpoint.retention import Retention
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tags
from tests.checkpoint.journals import claimed, put
from tests.checkpoint.places import corrupt, place, s3_endpoint  # noqa: F401
from tests.checkpoint.states import same_state, state_at


def journalled(url: str) -> Store:
    """Snapshots of updates 10 and 20, each with five updates journalled after it by two ranks; in one epoch."""
    checkpointer, store = Checkpointer(url, keep_last=99, keep_best=0), Store.open(url)
    for update in (10, 20):
        commit = checkpointer.save(state_at(update), {"updates": update})
        put(store, commit, commit.epoch, *range(update + 1, update + 6), ranks=(0, 1), size=2)
    return store


def entry(store: Store, base: int, update: int, rank: int = 0) -> str:
    commit = Checkpointer(store.url).at(base)
    return Place(commit.sequence, commit.epoch, update, rank, 2).name


def test_the_log_lists_every_journalled_update(place: str) -> None:  # noqa: F811
    log = read_log(journalled(place))
    assert [each.journalled for each in log.entries] == [(11, 15), (21, 25)]
    assert log.updates == [*range(10, 16), *range(20, 26)]


def test_a_fork_at_a_journalled_update_holds_what_leads_there_and_no_more(place: str) -> None:  # noqa: F811
    store, target = journalled(place), Store.open(place + "-fork")
    forked = fork(store, target, 13)
    assert (forked.commit.update, forked.update) == (10, 13)
    reader = JournalReader(target, forked.commit)
    assert reader.updates() == [11, 12, 13]
    assert [each.tensors["gradient"].data.sum() for each in reader.read(13)] == [
        each.tensors["gradient"].data.sum() for each in JournalReader(store, forked.commit).read(13)
    ]
    assert same_state(Checkpointer(target.url).restore()[0], state_at(10))
    assert check(target).sound
    assert read_log(target).updates == [10, 11, 12, 13]


def test_a_fork_of_what_a_later_epoch_journalled_takes_its_claims_along(tmp_path: Path) -> None:
    store = journalled(str(tmp_path / "a"))
    base = Checkpointer(store.url).at(20)
    writer = claimed(store, base, Seal(base.sequence, base.epoch, 23))
    put(store, base, writer.epoch, 24, 25, 26, ranks=(0, 1), size=2)
    target = Store.open(str(tmp_path / "b"))
    fork(store, target, 26)
    assert JournalReader(target, base).updates() == list(range(21, 27))
    assert JournalReader(target, base).seal(24).epoch == writer.epoch


@pytest.mark.parametrize("then", ["earlier", "another run's"])
def test_what_a_fork_that_was_cut_off_has_left_is_not_taken_for_the_next_ones(
    tmp_path: Path, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target = journalled(str(tmp_path / "a")), Store.open(str(tmp_path / "target"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("gradwire.checkpoint.fork.verify", Mock(side_effect=KeyboardInterrupt))
        fork(store, target, 15)
    assert list(entry_names(target))
    if then == "earlier":
        update = 12
    else:
        store, update = Store.open(str(tmp_path / "b")), 14
        commit = Checkpointer(store.url).save(state_at(10), {"updates": 10})
        for number in range(11, 16):
            place = Place(commit.sequence, commit.epoch, number, 0, 2)
            for each in (place, replace(place, rank=1)):
                store.put_new(each.name, entry_bytes(Entry(each, {"lr": 7.0}, {})))
    forked = fork(store, target, update)
    there, clean = JournalReader(target, forked.commit), Store.open(str(tmp_path / "clean"))
    fork(store, clean, update)
    assert there.updates() == list(range(11, update + 1))
    assert {name: target.get(name, 2**20) for name in entry_names(target)} == {
        name: clean.get(name, 2**20) for name in entry_names(clean)
    }
    assert check(target).sound


def test_where_another_writer_has_a_claim_is_no_place_for_a_fork(tmp_path: Path) -> None:
    store, target = journalled(str(tmp_path / "a")), Store.open(str(tmp_path / "b"))
    for _ in range(3):
        claimed(target)
    with pytest.raises(StoreError, match=r"is another run's or fork's.*empty this one first"):
        fork(store, target, 13)
    assert not list(entry_names(target))


def test_tags_of_other_snapshots_are_not_taken_over_by_a_fork(tmp_path: Path) -> None:
    store, target = journalled(str(tmp_path / "a")), Store.open(str(tmp_path / "b"))
    Tags(target).create("spike", Checkpointer(target.url).save(state_at(5), {"updates": 5}))
    for commit in target.list("commits"):
        target.delete(commit)
    with pytest.raises(StoreError, match="empty this one first"):
        fork(store, target, 13)
    assert not target.list("commits")


def test_folders_with_numbers_that_no_run_reaches_keep_nothing_of_the_journal_from_counting(tmp_path: Path) -> None:
    store = journalled(str(tmp_path / "a"))
    base = CommitLog(store).history().at(10)
    there = JournalReader(store, base).updates()
    for stray in (f"{base.sequence:020d}/{'9' * 20}", f"{'9' * 20}/{7:020d}"):
        (tmp_path / "a" / "journal" / stray).mkdir(parents=True)
    assert there
    assert JournalReader(store, base).updates() == there


def test_what_was_trimmed_while_it_was_forked_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target = journalled(str(tmp_path / "a")), Store.open(str(tmp_path / "b"))
    gone = entry(store, 10, 12)

    def trimmed(*arguments: Any) -> Any:
        store.delete(gone)
        return read_outline(*arguments)

    monkeypatch.setattr("gradwire.checkpoint.fork.read_outline", trimmed)
    with pytest.raises(NoCheckpoint, match="update 12 was removed from the journal while it was copied"):
        fork(store, target, 13)


def test_an_update_that_was_not_journalled_is_refused(tmp_path: Path) -> None:
    store = journalled(str(tmp_path / "a"))
    with pytest.raises(NoCheckpoint, match="no snapshot of update 17; it has updates: 10, 20"):
        fork(store, Store.open(str(tmp_path / "b")), 17)
    assert not (tmp_path / "b").exists()


def test_a_damaged_entry_is_not_forked(tmp_path: Path) -> None:
    store = journalled(str(tmp_path / "a"))
    corrupt(store.url, entry(store, 10, 12))
    with pytest.raises(DamagedCheckpoint, match="-0-of-2"):
        fork(store, Store.open(str(tmp_path / "b")), 13)
    with pytest.raises(NoCheckpoint):
        Checkpointer(tmp_path / "b").restore()


def test_a_damaged_entry_is_found_and_costs_the_updates_from_there_on(place: str) -> None:  # noqa: F811
    store = journalled(place)
    name = entry(store, 20, 23, rank=1)
    corrupt(place, name)
    report = check(store)
    assert report.checked["journal"] == 20
    (finding,) = report.findings
    assert finding.name == name
    assert finding.lost.startswith("update 23 and those journalled on it; update 20")
    assert [commit.update for commit in report.whole] == [10, 20]
    assert name in repair(store, report)
    assert check(store).sound
    assert JournalReader(store, Checkpointer(place).at(20)).updates() == [21, 22]


def test_a_repair_seals_what_is_journalled_and_it_counts_on(tmp_path: Path) -> None:
    store = journalled(str(tmp_path))
    base = Checkpointer(store.url).at(20)
    pack = read_outline(store, Checkpointer(store.url).at(10)).parts[0].packs[0].name
    corrupt(store.url, pack)
    repair(store, check(store))
    assert check(store).sound
    assert JournalReader(store, base).updates() == [21, 22, 23, 24, 25]
    put(store, base, base.epoch, 26, ranks=(0, 1), size=2)  # of a writer that does not know yet
    assert JournalReader(store, base).updates() == [21, 22, 23, 24, 25]


def test_after_the_newest_snapshot_is_lost_the_journal_leads_on_from_the_one_before(tmp_path: Path) -> None:
    checkpointer, store = Checkpointer(tmp_path, keep_last=99), Store.open(str(tmp_path))
    first = checkpointer.save(state_at(10), {"updates": 10})
    put(store, first, first.epoch, 11, 12)
    second = checkpointer.save(state_at(12), {"updates": 12})
    put(store, second, second.epoch, 13, 14)
    corrupt(store.url, read_outline(store, second).parts[0].packs[0].name)
    repair(store, check(store))
    assert check(store).sound
    assert JournalReader(store, first).updates() == [11, 12, 13, 14]


def test_pruning_takes_the_journal_that_no_snapshot_can_be_replayed_with(place: str) -> None:  # noqa: F811
    store = journalled(place)
    claimed(store, Checkpointer(place).at(20), JournalReader(store, Checkpointer(place).at(20)).seal(25))
    collector, plan = plan_prune(store, Retention(1, 0, "eval/loss"), grace=0.0)
    told = {verdict.name: (verdict.goes, verdict.reason) for verdict in plan.verdicts}
    assert told[entry(store, 10, 11)] == (True, "no snapshot that stays can be replayed with it")
    assert told[entry(store, 20, 21)] == (False, "it can be replayed on update 20, which stays")
    base = Checkpointer(place).at(20)
    collector.carry_out(plan)
    assert JournalReader(store, base).updates() == [21, 22, 23, 24, 25]
    assert store.folders("journal") == [f"journal/{base.sequence:020d}"]
    assert read_log(store).updates == [20, *range(21, 26)]


def test_the_journal_of_the_newest_writer_stays(tmp_path: Path) -> None:
    store = journalled(str(tmp_path))
    _, plan = plan_prune(store, Retention(1, 0, "eval/loss"), grace=0.0)
    reasons = {verdict.name: verdict.reason for verdict in plan.verdicts if not verdict.goes}
    assert reasons[entry(store, 10, 11)] == "of the newest writer, who may be at work"


def test_what_a_damaged_claim_may_lead_to_stays(tmp_path: Path) -> None:
    store = journalled(str(tmp_path))
    base = Checkpointer(store.url).at(20)
    writer = claimed(store, base, Seal(base.sequence, base.epoch, 25))
    put(store, base, writer.epoch, 26, ranks=(0, 1), size=2)
    claimed(store, base, Seal(base.sequence, writer.epoch, 26))
    corrupt(store.url, f"commits/{writer.epoch:020d}")
    _, plan = plan_prune(store, Retention(1, 0, "eval/loss"), grace=0.0)
    assert not [verdict for verdict in plan.going if verdict.name.startswith("journal/")]
