from pathlib import Path
from unittest import mock

import pytest

from gradwire.checkpoint import Checkpointer, CheckpointWriteError, StoreUnavailable, WriterFenced
from gradwire.checkpoint.retention import Pruner, Retention
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
