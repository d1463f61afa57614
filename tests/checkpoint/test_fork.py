from pathlib import Path
from unittest import mock

import pytest
import torch

from gradwire.checkpoint import Checkpointer, DamagedCheckpoint, NoCheckpoint, State, StoreError, StoreUnavailable
from gradwire.checkpoint.fork import fork
from gradwire.checkpoint.fsck import check
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.outline import read_outline
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tags
from tests.checkpoint.places import corrupt, place, s3_endpoint, save  # noqa: F401
from tests.checkpoint.states import same_state, state_at


def test_a_fork_holds_the_snapshot_and_what_it_needs_and_goes_on_from_it(place: str, tmp_path: Path) -> None:  # noqa: F811
    source = save(place, range(1, 5))
    for target in (place + "-fork", str(tmp_path / "fork")):
        forked = fork(Store.open(place), Store.open(target), 2)
        assert forked.commit == source.at(2)
        assert forked.update == 2
        assert same_state(Checkpointer(target).restore()[0], state_at(2))
        report = check(Store.open(target))
        assert report.sound
        assert (report.checked["packs"], report.leftovers) == (1, ())
        save(target, range(3, 5))
        assert [commit.update for commit in Checkpointer(target).commits()] == [2, 3, 4]
        assert check(Store.open(target)).sound
    assert [commit.update for commit in source.commits()] == [1, 2, 3, 4]


def test_a_fork_may_begin_at_the_newest_at_a_tag_and_on_an_abandoned_branch(tmp_path: Path) -> None:
    url = str(tmp_path / "source")
    abandoned = save(url, range(1, 4)).at(3)
    Tags(Store.open(url)).create("spike", abandoned)
    again = Checkpointer(url, keep_last=99)
    again.restore(1)
    again.save(state_at(7), {"updates": 2})
    assert fork(Store.open(url), Store.open(str(tmp_path / "a"))).commit.update == 2
    assert same_state(Checkpointer(tmp_path / "a").restore()[0], state_at(7))
    fork(Store.open(url), Store.open(str(tmp_path / "b")), "spike")
    assert same_state(Checkpointer(tmp_path / "b").restore()[0], state_at(3))
    with pytest.raises(NoCheckpoint, match=r"no snapshot of update 3 \(one was abandoned"):
        fork(Store.open(url), Store.open(str(tmp_path / "c")), 3)
    assert not (tmp_path / "c").exists()


def test_of_two_snapshots_of_an_update_the_whole_one_is_forked(tmp_path: Path) -> None:
    url = str(tmp_path / "source")
    first = save(url, range(1, 2)).at(1)
    branch = Checkpointer(url)
    branch.restore()
    second = branch.save(state_at(1), {"updates": 1}, {"loss": 1.0})
    with branch.journal(second, 1, "update") as journal:
        journal.append(2, {}, {})
        journal.wait(2)
    (tmp_path / "source" / second.parts[0].name).unlink()
    for update in (1, 2):
        forked = fork(Store.open(url), Store.open(str(tmp_path / f"to {update}")), update)
        assert (forked.commit, forked.update) == (first, update)
        assert list(JournalReader(Store.open(str(tmp_path / f"to {update}")), first).names) == [2][: update - 1]
    (tmp_path / "source" / first.parts[0].name).unlink(missing_ok=True)
    with pytest.raises(DamagedCheckpoint, match=rf"no whole snapshot of update 1: {second.name}.*{first.name}"):
        fork(Store.open(url), Store.open(str(tmp_path / "c")), 1)


def test_a_store_that_holds_snapshots_is_no_place_for_a_fork(tmp_path: Path) -> None:
    save(str(tmp_path / "a"), range(1, 2))
    save(str(tmp_path / "b"), range(1, 2))
    with pytest.raises(StoreError, match="holds snapshots already"):
        fork(Store.open(str(tmp_path / "a")), Store.open(str(tmp_path / "b")))


def test_a_fork_that_was_cut_off_holds_nothing_and_can_be_begun_again(tmp_path: Path) -> None:
    url, target = str(tmp_path / "a"), Store.open(str(tmp_path / "b"))
    save(url, range(1, 3))
    put_new = Store.put_new

    def cut_off(store: Store, name: str, data: bytes) -> bool:
        if name == Checkpointer(url).at(2).name:
            raise StoreUnavailable("cut off")
        return put_new(store, name, data)

    with mock.patch.object(Store, "put_new", cut_off), pytest.raises(StoreUnavailable):
        fork(Store.open(url), target)
    with pytest.raises(NoCheckpoint):
        Checkpointer(tmp_path / "b").restore()
    fork(Store.open(url), target)
    assert same_state(Checkpointer(tmp_path / "b").restore()[0], state_at(2))


def test_a_damaged_snapshot_is_not_forked(tmp_path: Path) -> None:
    url = str(tmp_path / "a")
    commit = save(url, range(1, 3)).at(2)
    pack = read_outline(Store.open(url), commit).parts[0].packs[0]
    corrupt(url, pack.name)
    with pytest.raises(DamagedCheckpoint, match=pack.name):
        fork(Store.open(url), Store.open(str(tmp_path / "b")))
    assert not (tmp_path / "b" / "commits").exists()


def test_only_what_the_snapshot_needs_is_copied(tmp_path: Path) -> None:
    url = str(tmp_path / "a")
    checkpointer = Checkpointer(url, keep_last=9)
    for update in (1, 2):
        checkpointer.save(State({"model": {"w": torch.full((100_000,), float(update))}}), {"updates": update})
    told: list[int] = []
    forked = fork(Store.open(url), Store.open(str(tmp_path / "b")), 1, told.append)
    assert (
        sum(told)
        == forked.size
        == sum(p.stat().st_size for k in ("packs", "parts") for p in (tmp_path / "b" / k).iterdir())
    )
