from pathlib import Path
from unittest import mock

import pytest

from gradwire.checkpoint import Checkpointer, CheckpointWriteError, StoreError, StoreUnavailable, WriterFenced
from gradwire.checkpoint.commit import Parent, Seal
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.epochs import CommitWriter, Draft
from gradwire.checkpoint.retention import Pruner, Retention
from gradwire.checkpoint.snapshot import PartRef
from gradwire.checkpoint.store import Store
from tests.checkpoint.states import same_state, state_at


def test_a_commit_whose_success_was_not_heard_of_is_kept_and_continued(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(state_at(1), {"updates": 1})
    put_new = Store.put_new

    def applied_then_lost(store: Store, name: str, data: bytes) -> bool:
        put_new(store, name, data)
        raise StoreUnavailable("the answer was lost")

    with (
        mock.patch.object(Store, "put_new", applied_then_lost),
        pytest.raises(CheckpointWriteError, match="the answer was lost"),
    ):
        checkpointer.save(state_at(2), {"updates": 2})
    assert same_state(Checkpointer(tmp_path).restore()[0], state_at(2))
    commit = checkpointer.save(state_at(3), {"updates": 3})
    assert commit.parent is not None
    assert commit.parent.sequence == commit.sequence - 1
    assert [commit.update for commit in checkpointer.commits()] == [1, 2, 3]


def test_two_writers_that_claim_at_once_get_different_numbers(tmp_path: Path) -> None:
    first, second = Checkpointer(tmp_path), Checkpointer(tmp_path)
    put_new, raced = Store.put_new, []

    def race(store: Store, name: str, data: bytes) -> bool:
        if not raced:
            raced.append(name)
            second.save(state_at(1), {"updates": 1})
        return put_new(store, name, data)

    with mock.patch.object(Store, "put_new", race):
        first.save(state_at(2), {"updates": 2})
    with pytest.raises(WriterFenced):
        second.save(state_at(3), {"updates": 3})
    assert same_state(Checkpointer(tmp_path).restore()[0], state_at(2))


def test_a_writer_that_was_taken_over_removes_nothing(tmp_path: Path) -> None:
    old = Checkpointer(tmp_path, keep_last=9).save(state_at(1), {"updates": 1})
    successor = Checkpointer(tmp_path, keep_last=9)
    successor.restore()
    successor.save(state_at(2), {"updates": 2})
    (tmp_path / "packs" / ("0" * 64)).write_text("of a save that is under way")
    before = sorted(tmp_path.rglob("*"))
    Pruner(Store.open(str(tmp_path)), Retention(1, 0, "eval/loss")).prune(old.sequence)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failed_clean_up_does_not_fail_the_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpointer = Checkpointer(tmp_path, keep_last=1, keep_best=0)
    checkpointer.save(state_at(1), {"updates": 1})
    with mock.patch.object(Store, "delete", side_effect=StoreUnavailable("no answer")):
        checkpointer.save(state_at(2), {"updates": 2})
    assert "update 2 was saved, but old snapshots were not removed: no answer" in caplog.text
    checkpointer.save(state_at(3), {"updates": 3})
    assert [commit.update for commit in checkpointer.commits()] == [3]
    assert len(list((tmp_path / "packs").iterdir())) == 1


def draft(update: int) -> Draft:
    return Draft("interval", {"updates": update}, {}, 1, {"shared": (), "local": ()}, (PartRef(0, "a" * 64, 1),))


def epochs_of(store: Store) -> list[tuple[int, Seal | None]]:
    return [(epoch.sequence, epoch.seals) for epoch in CommitLog(store).history().epochs]


def test_an_epoch_seals_what_its_writer_goes_on_from(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    first = CommitWriter(store, "first")
    first.claim()
    commit = first.publish(draft(10))
    restored, replayed = CommitWriter(store, "restored"), CommitWriter(store, "replayed")
    restored.continue_from(commit)
    restored.claim()
    replayed.continue_from(commit, Seal(commit.sequence, commit.epoch, 17))
    replayed.claim()
    assert epochs_of(store) == [(1, None), (3, Seal(2, 1, 10)), (4, Seal(2, 1, 17))]
    assert replayed.epoch == 4


def test_a_writer_that_goes_back_begins_another_epoch(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    writer = CommitWriter(store, "writer")
    writer.claim()
    older = writer.publish(draft(10))
    writer.publish(draft(20))
    writer.continue_from(older)
    with pytest.raises(StoreError, match="need a claimed epoch"):
        writer.publish(draft(11))
    writer.claim()
    writer.claim()
    commit = writer.publish(draft(11))
    assert epochs_of(store) == [(1, None), (4, Seal(2, 1, 10))]
    assert (commit.sequence, commit.epoch, commit.ancestry) == (5, 4, ((1, 2), (4, 5)))
    assert commit.parent == Parent(2, older.digest)


def test_a_writer_that_goes_back_after_it_was_taken_over_is_fenced(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    writer, successor = CommitWriter(store, "writer"), CommitWriter(store, "successor")
    writer.claim()
    commit = writer.publish(draft(10))
    successor.claim()
    writer.continue_from(commit)
    with pytest.raises(WriterFenced, match="'successor' took over"):
        writer.claim()


def test_a_writer_that_goes_back_over_a_commit_it_never_heard_of_descends_from_what_it_restored(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    writer = CommitWriter(store, "writer")
    writer.claim()
    commit = writer.publish(draft(10))
    put_new = Store.put_new

    def applied_then_lost(store: Store, name: str, data: bytes) -> bool:
        put_new(store, name, data)
        raise StoreUnavailable("the answer was lost")

    with mock.patch.object(Store, "put_new", applied_then_lost), pytest.raises(StoreUnavailable):
        writer.publish(draft(20))
    writer.continue_from(commit)
    writer.claim()
    assert writer.publish(draft(11)).parent == Parent(commit.sequence, commit.digest)
