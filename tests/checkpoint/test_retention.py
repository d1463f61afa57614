import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.checkpoint import Checkpointer, State
from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.commits import History
from gradwire.checkpoint.retention import Retention
from gradwire.checkpoint.snapshot import read_part
from gradwire.checkpoint.store import Store
from tests.checkpoint.test_commit import a_commit


def history(losses: dict[int, float | None], ancestry: tuple[tuple[int, int], ...] | None = None) -> History:
    last = max(losses)
    commits = tuple(
        a_commit(
            sequence,
            metrics={} if loss is None else {"eval/loss": loss},
            ancestry=(ancestry if sequence == last and ancestry else ((1, sequence),)),
        )
        for sequence, loss in sorted(losses.items())
    )
    return History("test://", commits, {}, last)


def test_the_newest_and_the_best_stay() -> None:
    losses = {2: 3.0, 3: 1.0, 4: 2.0, 5: None, 6: math.nan, 7: 5.0}
    assert Retention(2, 1, "eval/loss").kept(history(losses)).keys() == {3, 6, 7}
    assert Retention(1, 2, "eval/loss").kept(history(losses)).keys() == {3, 4, 7}
    assert Retention(1, 0, "eval/loss").kept(history(losses)).keys() == {7}
    assert Retention(1, 3, "accuracy").kept(history(losses)).keys() == {7}


def test_among_equals_the_newer_one_is_the_better() -> None:
    assert Retention(1, 1, "eval/loss").kept(history({2: 1.0, 3: 1.0, 4: 2.0})).keys() == {3, 4}


def test_what_a_rollback_abandoned_goes_with_time_and_what_led_here_stays() -> None:
    after_rollback = history({2: 5.0, 3: 0.1, 4: 0.2, 6: 4.0}, ancestry=((1, 2), (5, 6)))
    assert Retention(2, 1, "eval/loss").kept(after_rollback).keys() == {2, 4, 6}


@given(st.dictionaries(st.integers(2, 40), st.none() | st.floats(), min_size=1), st.integers(1, 5), st.integers(0, 5))
def test_the_newest_always_stays_and_no_more_than_asked_for(
    losses: dict[int, float | None], last: int, best: int
) -> None:
    kept = Retention(last, best, "eval/loss").kept(history(losses)).keys()
    assert max(losses) in kept
    assert kept <= losses.keys()
    assert min(last, len(losses)) <= len(kept) <= last + best


@pytest.mark.parametrize(("last", "best"), [(0, 1), (1, -1)])
def test_keeping_nothing_is_refused(last: int, best: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        Checkpointer("memory://retention", keep_last=last, keep_best=best)


def objects(folder: Path) -> set[str]:
    return {f"{kind}/{path.name}" for kind in ("packs", "parts") for path in (folder / kind).iterdir()}


def needed(folder: Path, commits: list[Commit]) -> set[str]:
    store, names = Store.open(str(folder)), set()
    for commit in commits:
        for part in commit.parts:
            names |= {part.name, *(pack.name for pack in read_part(store, part).packs)}
    return names


def test_a_store_holds_what_its_kept_snapshots_need_and_nothing_else(tmp_path: Path) -> None:
    checkpointer = Checkpointer(str(tmp_path), keep_last=2, keep_best=1)
    losses = [9.0, 1.0, 5.0, 4.0, 6.0, 7.0]
    for update, loss in enumerate(losses):
        frozen, moving = torch.arange(1000), torch.full((1000,), update)
        checkpointer.save(State({"model": {"a": frozen, "b": moving}}), {"updates": update}, {"eval/loss": loss})
        assert objects(tmp_path) == needed(tmp_path, checkpointer.commits())
    assert [commit.update for commit in checkpointer.commits()] == [1, 4, 5]
    for update in (1, 4, 5):
        assert checkpointer.restore(update)[0].shared["model"]["b"].tolist() == [update] * 1000


def test_an_equal_snapshot_shares_its_packs_and_outlives_the_first(tmp_path: Path) -> None:
    checkpointer = Checkpointer(str(tmp_path), keep_last=1, keep_best=0)
    for update in range(3):
        checkpointer.save(State({"model": {"w": torch.arange(100)}}), {"updates": update})
    assert len(list((tmp_path / "packs").iterdir())) == 1
    assert checkpointer.restore()[0].shared["model"]["w"].tolist() == list(range(100))


def test_what_a_killed_save_left_is_removed_and_foreign_files_stay(tmp_path: Path) -> None:
    Checkpointer(str(tmp_path)).save(State({"model": {"w": torch.zeros(3)}}), {"updates": 1})
    for left in ("packs/" + "0" * 64, "parts/" + "1" * 64, "packs/.tmp-77", "packs/notes", "README"):
        (tmp_path / left).write_text("left")
    checkpointer = Checkpointer(str(tmp_path))
    checkpointer.restore()
    checkpointer.save(State({"model": {"w": torch.ones(3)}}), {"updates": 2})
    assert objects(tmp_path) - needed(tmp_path, checkpointer.commits()) == {"packs/notes"}
    assert (tmp_path / "README").read_text() == "left"


def test_while_a_kept_part_is_damaged_nothing_is_removed_that_it_may_need(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(str(tmp_path), keep_last=2, keep_best=0)
    first = checkpointer.save(State({"model": {"w": torch.arange(10)}}), {"updates": 1})
    packs = set((tmp_path / "packs").iterdir())
    (tmp_path / first.parts[0].name).write_text("rotten")
    again = Checkpointer(str(tmp_path), keep_last=2, keep_best=0)
    again.save(State({"model": {"w": torch.zeros(10)}}), {"updates": 2})
    assert packs <= set((tmp_path / "packs").iterdir())
    assert "not cleaned up" in caplog.text
