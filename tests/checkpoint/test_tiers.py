"""Snapshots that are saved near and copied onward: what each tier holds, and what is restored from which."""

import logging
import multiprocessing
import os
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from gradwire.checkpoint import (
    Checkpointer,
    CheckpointError,
    CheckpointWriteError,
    Commit,
    DamagedCheckpoint,
    NoCheckpoint,
    Policy,
    State,
    StoreError,
    StoreFull,
    StoreUnavailable,
    WriterFenced,
    memory,
)
from gradwire.checkpoint.blobs import Blob
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.fsck import check
from gradwire.checkpoint.garbage import Collector
from gradwire.checkpoint.ranks import Ranks
from gradwire.checkpoint.recovery import Recovery
from gradwire.checkpoint.space import Demand
from gradwire.checkpoint.store import Store
from tests.checkpoint.places import corrupt, place, s3_endpoint  # noqa: F401 - fixtures
from tests.checkpoint.states import same_state, state_at

WARN = Policy("warn", failures=2)


def tiered(folder: Path, *nearer: str, far: str = "far", **settings: Any) -> Checkpointer:
    return Checkpointer(folder / far, tiers=[folder / name for name in nearer or ("near",)], **settings)


def start(checkpointer: Checkpointer, *updates: int) -> None:
    """Save updates, each durable and what it made superfluous removed from the nearest tier; copied later."""
    for update in updates:
        checkpointer.start(state_at(update), {"updates": update}).wait()
        writing = checkpointer._background._thread
        assert writing is not None
        writing.join()


def save(checkpointer: Checkpointer, *updates: int) -> list[Commit]:
    return [checkpointer.save(state_at(update), {"updates": update}) for update in updates]


def held(url: object) -> list[int]:
    """The updates of the snapshots in a store."""
    return [commit.update for commit in Checkpointer(str(url)).commits()]


def restored(checkpointer: Checkpointer, ref: Any = "latest") -> int:
    """The update that is restored, its bits compared."""
    state, commit = checkpointer.restore(ref)
    assert same_state(state, state_at(commit.update))
    return commit.update


@contextmanager
def writing(
    url: object, before: Callable[[str], None], after: Callable[[str], None] = lambda folder: None
) -> Iterator[None]:
    """Act before and after each object that is written to a store; what `before` raises, the write raises."""
    put_content, put_new = Store.put_content, Store.put_new

    def content(self: Store, folder: str, *arguments: Any) -> bool:
        return acting(self, folder, lambda: put_content(self, folder, *arguments))

    def new(self: Store, name: str, data: bytes) -> bool:
        return acting(self, name.partition("/")[0], lambda: put_new(self, name, data))

    def acting(store: Store, folder: str, put: Callable[[], bool]) -> bool:
        if store.url != str(url):
            return put()
        before(folder)
        created = put()
        after(folder)
        return created

    with mock.patch.object(Store, "put_content", content), mock.patch.object(Store, "put_new", new):
        yield


@contextmanager
def blocked(url: object) -> Iterator[threading.Event]:
    """Packs that go to a store wait until the event is set."""
    go = threading.Event()
    with writing(url, lambda folder: None if folder != "packs" or go.wait(240) else pytest.fail("not let through")):
        try:
            yield go
        finally:
            go.set()


def failing(url: object, error: Exception, folder: str = "packs") -> Any:
    def fail(what: str) -> None:
        if what == folder:
            raise error

    return writing(url, fail)


def left_near(folder: Path, first: int, *near: int, **settings: Any) -> None:
    """A run that was killed when the last store had a snapshot and the nearest newer ones."""
    checkpointer = tiered(folder, policy=Policy("warn", failures=99), **settings)
    save(checkpointer, first)
    with failing(folder / settings.get("far", "far"), StoreUnavailable("gone")):
        start(checkpointer, *near)
        checkpointer._mirror.settle()


def test_a_snapshot_reaches_every_tier_and_each_is_a_store_of_its_own(place: str, tmp_path: Path) -> None:  # noqa: F811
    near, disk = str(tmp_path / "near"), str(tmp_path / "disk")
    with Checkpointer(place, tiers=[near, disk], keep_last=2) as checkpointer:
        commits = save(checkpointer, 1, 2, 3)
        assert restored(checkpointer) == 3
    assert commits == [*commits[:1], *Checkpointer(place).commits()]
    assert (held(near), held(disk), held(place)) == ([3], [3], [2, 3])
    for url in (near, disk, place):
        report = check(Store.open(url))
        assert report.sound and not report.leftovers
        assert restored(Checkpointer(url)) == 3
    packs = [set(Store.open(url).list("packs")) for url in (near, disk, place)]
    assert len(set.union(*packs)) == sum(map(len, packs)), "no two stores' packs have one name"


def test_training_does_not_wait_for_farther_tiers_and_what_was_overtaken_is_left_out(tmp_path: Path) -> None:
    checkpointer = tiered(tmp_path)
    with blocked(tmp_path / "far") as go:
        start(checkpointer, 1, 2, 3, 4)
        checkpointer._background.settle()
        assert checkpointer.durable is None
        assert held(tmp_path / "near") == [1, 4], "the one that is being copied, and the newest"
        go.set()
        checkpointer.close()
    assert held(tmp_path / "far") == [1, 4]
    assert checkpointer.durable == Checkpointer(tmp_path / "far").latest()
    assert restored(Checkpointer(tmp_path / "far")) == 4


def test_the_nearest_is_read_even_where_the_last_one_has_lost_its_packs(tmp_path: Path) -> None:
    save(tiered(tmp_path), 1)
    shutil.rmtree(tmp_path / "far" / "packs")
    checkpointer = tiered(tmp_path)
    assert restored(checkpointer) == 1
    assert checkpointer.damaged == ()


def test_what_the_nearest_has_damaged_is_read_from_the_next_and_both_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    save(tiered(tmp_path), 1, 2)
    corrupt(str(near), Store.open(str(near)).list("packs")[0])
    checkpointer = tiered(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert restored(checkpointer) == 2
        assert restored(checkpointer, 2) == 2
    assert f"{far}: restored update 2 in place of {near}" in caplog.text
    assert f"damaged: {near}: packs/" in caplog.text
    save(checkpointer, 3)
    for url in (near, far):
        assert restored(Checkpointer(url)) == 3, "nothing of what was damaged is relied on"


def test_only_where_no_tier_has_it_whole_an_update_is_damaged(tmp_path: Path) -> None:
    save(tiered(tmp_path), 1)
    for url in (str(tmp_path / "near"), str(tmp_path / "far")):
        corrupt(url, Store.open(url).list("packs")[0])
    for ref in (1, "latest"):
        with pytest.raises(DamagedCheckpoint, match=r"near, .*far has no whole snapshot.*near: packs/.*far: packs/"):
            tiered(tmp_path).restore(ref)
    with pytest.raises(NoCheckpoint, match="no snapshot of update 7; updates: 1"):
        tiered(tmp_path).restore(7)


def test_an_emptied_tier_is_filled_again(tmp_path: Path) -> None:
    checkpointer = tiered(tmp_path)
    save(checkpointer, 1)
    shutil.rmtree(tmp_path / "near")
    save(checkpointer, 2)
    shutil.rmtree(tmp_path / "near")
    resumed = tiered(tmp_path)
    assert restored(resumed) == 2
    save(resumed, 3)
    assert (held(tmp_path / "near"), held(tmp_path / "far")) == ([3], [1, 2, 3])
    shutil.rmtree(tmp_path / "far" / "packs")
    assert restored(tiered(tmp_path)) == 3


def test_what_only_the_nearest_has_is_restored_and_copied_onward_by_who_trains(tmp_path: Path) -> None:
    left_near(tmp_path, 1, 2, 3)
    assert held(tmp_path / "near")[-1] == 3
    assert held(tmp_path / "far") == [1]
    reading = tiered(tmp_path)
    assert restored(reading) == 3
    reading.close()
    assert held(tmp_path / "far") == [1], "who only reads writes nothing"
    assert restored(tiered(tmp_path)) == 3
    resumed = tiered(tmp_path)
    assert restored(resumed) == 3
    resumed.take_over(state_at(3))
    resumed.close()
    assert held(tmp_path / "far") == [1, 3]
    assert restored(tiered(tmp_path)) == 3
    again = tiered(tmp_path)
    assert restored(again) == 3
    again.take_over(state_at(3))
    again.close()
    assert held(tmp_path / "far") == [1, 3], "what is there is not copied again"


def test_a_claim_that_saved_nothing_changes_nothing(tmp_path: Path) -> None:
    left_near(tmp_path, 1, 2)
    resumed = tiered(tmp_path)
    restored(resumed, 1)
    with failing(tmp_path / "far", StoreUnavailable("gone")):
        resumed.take_over(state_at(1))
        resumed._mirror.settle()
    assert restored(tiered(tmp_path)) == 2


def test_a_branch_that_the_last_tier_has_abandoned_does_not_win(tmp_path: Path) -> None:
    left_near(tmp_path, 1, 8, 9)
    elsewhere = tiered(tmp_path, "other_host")
    assert restored(elsewhere) == 1
    save(elsewhere, 2)
    back = tiered(tmp_path)
    assert restored(back) == 2
    with pytest.raises(NoCheckpoint, match="no snapshot of update 9; updates: 1, 2"):
        tiered(tmp_path).restore(9)
    save(back, 3)
    assert restored(tiered(tmp_path)) == 3
    assert held(tmp_path / "near") == [3]


def test_a_tier_of_another_run_does_not_win(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left_near(tmp_path, 7, 9, far="other_run")
    with pytest.raises(NoCheckpoint, match=r"no snapshot that counts.*not of the run that writes to .*far"):
        tiered(tmp_path).restore()
    checkpointer = tiered(tmp_path)
    with caplog.at_level(logging.WARNING):
        save(checkpointer, 1)
    assert "near already holds snapshots up to update 9, which this run does not continue from" in caplog.text
    assert restored(tiered(tmp_path)) == 1


def test_who_goes_back_abandons_what_came_later_in_every_tier(tmp_path: Path) -> None:
    checkpointer = tiered(tmp_path, policy=Policy("warn", failures=9))
    save(checkpointer, 1, 2, 3)
    assert restored(checkpointer, 2) == 2
    with failing(tmp_path / "far", StoreUnavailable("gone")):
        start(checkpointer, 4)
        checkpointer._mirror.settle()
        assert (held(tmp_path / "near"), held(tmp_path / "far")) == ([4], [1, 2, 3])
        assert restored(tiered(tmp_path)) == 4
        corrupt(str(tmp_path / "near"), Store.open(str(tmp_path / "near")).list("parts")[0])
        assert restored(tiered(tmp_path)) == 2, "3 was abandoned"
    resumed = tiered(tmp_path)
    assert restored(resumed, 2) == 2
    save(resumed, 3)
    assert [commit.update for commit in resumed.commits()] == [1, 2, 3]
    assert len(Checkpointer(tmp_path / "far")._log.history().commits) == 4


def test_what_did_not_change_is_copied_once_also_by_another_process(tmp_path: Path) -> None:
    frozen = torch.randn(400_000)
    for updates in (range(1, 3), range(3, 5)):
        checkpointer = tiered(tmp_path)
        if updates[0] > 1:
            checkpointer.restore()
        for update in updates:
            checkpointer.save(State({"frozen": frozen, "update": torch.tensor([update])}), {"updates": update})
    sizes = [path.stat().st_size for path in (tmp_path / "far" / "packs").iterdir()]
    assert [size > 10**6 for size in sizes].count(True) == 1
    assert check(Store.open(str(tmp_path / "far"))).sound


def test_a_last_tier_that_fails_is_warned_of_and_has_the_newest_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = tiered(tmp_path, policy=WARN)
    save(checkpointer, 1)
    with failing(tmp_path / "far", StoreFull("no space left")), caplog.at_level(logging.WARNING):
        for update in (2, 3, 4):
            start(checkpointer, update)
            checkpointer._mirror._settle()
        assert checkpointer.standing.failed == 2
        assert not checkpointer.standing.journal, "the last tier is full"
        assert caplog.text.count("was not copied to") == 2
        with pytest.raises(CheckpointWriteError, match=r"update 4 is saved in .*near and was not copied to .*far: no"):
            start(checkpointer, 5)
        assert held(tmp_path / "far") == [1]
        assert not list((tmp_path / "far" / "packs").glob(".tmp*"))
    start(checkpointer, 6)
    checkpointer.close()
    assert checkpointer.standing.failed == 0
    assert (held(tmp_path / "near"), held(tmp_path / "far")) == ([6], [1, 6])
    assert not check(Store.open(str(tmp_path / "far"))).leftovers


def test_a_run_does_not_end_well_before_its_last_snapshot_is_in_the_last_tier(tmp_path: Path) -> None:
    checkpointer = tiered(tmp_path, policy=WARN)
    attempts = []

    def twice(folder: str) -> None:
        if folder == "commits" and len(attempts) < 3:
            attempts.append(folder)
            if len(attempts) > 1:  # the first is the claim
                raise StoreUnavailable("gone")

    with writing(tmp_path / "far", twice):
        start(checkpointer, 1)
        checkpointer.close()
    assert (len(attempts), held(tmp_path / "far")) == (3, [1])
    with failing(tmp_path / "far", StoreUnavailable("gone")):
        start(checkpointer, 2)
        with pytest.raises(CheckpointWriteError, match=r"update 2 is saved in .*near and was not copied to"):
            checkpointer.close()
        with pytest.raises(CheckpointWriteError, match=r"update 3 is saved in .*near and was not copied to"):
            save(checkpointer, 3)
    assert restored(tiered(tmp_path)) == 3


def test_a_middle_tier_that_fails_is_told_and_the_nearest_keeps_the_snapshot(tmp_path: Path) -> None:
    checkpointer = tiered(tmp_path, "near", "disk")
    save(checkpointer, 1)
    with failing(tmp_path / "disk", OSError("i/o error")), pytest.raises(CheckpointError, match="i/o error"):
        save(checkpointer, 2)
    assert restored(tiered(tmp_path, "near", "disk")) == 2


def test_damage_that_is_met_while_copying_is_told_and_the_next_snapshot_relies_on_nothing(tmp_path: Path) -> None:
    near = str(tmp_path / "near")
    checkpointer = tiered(tmp_path, policy=WARN)
    save(checkpointer, 1)
    for name in Store.open(near).list("packs"):
        corrupt(near, name, b"x" * Store.open(near).size(name))
    shutil.rmtree(tmp_path / "far" / "packs")
    start(checkpointer, 1)  # the same bits again
    checkpointer._mirror._settle()
    save(checkpointer, 1)
    assert restored(Checkpointer(near)) == restored(Checkpointer(tmp_path / "far")) == 1


def test_a_run_that_was_taken_over_is_stopped_by_its_next_copy(tmp_path: Path) -> None:
    zombie = tiered(tmp_path, policy=WARN)
    save(zombie, 1)
    successor = tiered(tmp_path, "other_host")
    assert restored(successor) == 1
    save(successor, 2)
    start(zombie, 3)
    with pytest.raises(WriterFenced, match="must stop"):
        zombie.close()
    assert restored(tiered(tmp_path)) == 2


def test_a_snapshot_that_is_pruned_by_others_while_it_is_copied_is_no_damage(tmp_path: Path) -> None:
    near = Store.open(str(tmp_path / "near"))
    checkpointer = tiered(tmp_path, policy=WARN)
    with blocked(tmp_path / "far") as go:
        start(checkpointer, 1)
        for folder in ("commits", "parts", "packs"):
            for name in near.list(folder):
                near.delete(name)
        go.set()
        checkpointer._mirror._settle()
    start(checkpointer, 2)
    checkpointer.close()
    assert restored(tiered(tmp_path)) == 2


def _killed(folder: Path, stage: str, moment: str) -> None:
    checkpointer = tiered(folder)
    restored(checkpointer)

    def kill(what: str) -> None:
        if what == stage and threading.current_thread().name.startswith("copy from"):  # else it is a claim
            os.kill(os.getpid(), signal.SIGKILL)

    with writing(folder / "far", **{moment: kill, "before" if moment == "after" else "after": lambda what: None}):
        start(checkpointer, 2)
        checkpointer.close()


@pytest.mark.parametrize("stage", ["packs", "parts", "commits"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_between_the_tiers_costs_nothing(stage: str, moment: str, tmp_path: Path) -> None:
    save(tiered(tmp_path), 1)
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(tmp_path, stage, moment))
    process.start()
    process.join(240)
    assert process.exitcode == -signal.SIGKILL
    arrived = (stage, moment) == ("commits", "after")
    assert held(tmp_path / "far") == ([1, 2] if arrived else [1])
    resumed = tiered(tmp_path)
    assert restored(resumed) == 2
    resumed.take_over(state_at(2))
    resumed.close()
    assert held(tmp_path / "far") == [1, 2]
    assert restored(Checkpointer(tmp_path / "far")) == 2
    save(resumed, 3)
    for url in (tmp_path / "near", tmp_path / "far"):
        report = check(Store.open(str(url)))
        assert report.sound
        assert not report.leftovers


def test_memory_is_a_folder_for_this_user_and_store_and_is_freed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SHARED_MEMORY", tmp_path / "shm")
    with pytest.raises(StoreError, match=r"this host has no .*shm\. Name a folder on a local disk"):
        Checkpointer(tmp_path / "far", tiers=["memory"])
    (tmp_path / "shm").mkdir()
    folder = memory.folder_for(str(tmp_path / "far"))
    assert folder != memory.folder_for(str(tmp_path / "other"))
    with Checkpointer(tmp_path / "far", tiers=["memory"]) as checkpointer:
        assert not folder.exists(), "nothing is made before it is needed"
        save(checkpointer, 1)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert held(folder) == [1]
    with Checkpointer(tmp_path / "far", tiers=["memory"]) as checkpointer:
        assert restored(checkpointer) == 1
        checkpointer.save(state_at(2), {"updates": 2}, reason="end")
    assert held(folder) == [2]
    checkpointer.free()
    assert not folder.exists()
    assert restored(Checkpointer(tmp_path / "far", tiers=["memory"])) == 2
    folder.mkdir(mode=0o755)
    with pytest.raises(StoreError, match="is not a folder of this user's alone"):
        Checkpointer(tmp_path / "far", tiers=["memory"])


def test_too_little_room_in_the_nearest_is_refused_before_training(tmp_path: Path) -> None:
    checkpointer = tiered(tmp_path, policy=WARN)
    narrow = mock.patch("gradwire.checkpoint.saving.demand", lambda url, size: Demand(url, int(1.5 * size), size))
    with narrow, pytest.raises(CheckpointWriteError, match=r"near: No space left.*it takes about \d+ bytes"):
        checkpointer.take_over(state_at(1))
    assert not (tmp_path / "near").exists()
    checkpointer.take_over(state_at(1))
    assert (tmp_path / "near").exists()


def test_two_tiers_in_one_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="near: each tier needs a place of its own"):
        tiered(tmp_path, "near", "near")


def journalled(checkpointer: Checkpointer, base: Commit, after: int, *updates: int) -> None:
    with checkpointer.journal(base, after, "update") as journal:
        for update in updates:
            journal.append(update, {}, {"gradient": Blob(torch.full((4,), float(update)))})
            journal.wait(update)


def replayed(checkpointer: Checkpointer, commit: Commit) -> list[int]:
    recovery = checkpointer.recovery(commit)
    updates = [update for update, _ in recovery.entries()]
    if updates:
        checkpointer.continue_at(recovery, updates[-1])
    return updates


def test_the_journal_in_the_last_tier_goes_on_from_the_nearest_snapshot(tmp_path: Path) -> None:
    checkpointer = tiered(tmp_path, policy=Policy("warn", failures=99))
    (base,) = save(checkpointer, 1)
    with checkpointer.journal(base, 1, "update") as journal:
        for update in range(2, 7):
            journal.append(update, {}, {"gradient": Blob(torch.full((4,), float(update)))})
            journal.wait(update)
            if update == 4:
                with failing(tmp_path / "far", StoreUnavailable("gone")):
                    start(checkpointer, 4)
                    checkpointer._mirror.settle()
    assert (held(tmp_path / "near"), held(tmp_path / "far")) == ([4], [1])
    resumed = tiered(tmp_path)
    assert resumed.reach() == [(4, 6), (1, 6)]
    assert resumed.base_of(5) == 4 and resumed.base_of(3) == 1
    _, commit = resumed.restore()
    assert commit.update == 4
    assert replayed(resumed, commit) == [5, 6]
    resumed.take_over(state_at(6))
    journalled(resumed, commit, 6, 7, 8)
    again = tiered(tmp_path)
    _, commit = again.restore()
    assert (commit.update, replayed(again, commit)) == (4, [5, 6, 7, 8])
    save(again, 9)
    shutil.rmtree(tmp_path / "near")
    from_far = tiered(tmp_path)
    assert from_far.reach() == [(9, 9), (1, 8)]


@pytest.mark.parametrize("journal_until", [3, 4])
def test_a_journal_begins_anew_on_a_snapshot_that_the_last_tier_lacked(journal_until: int, tmp_path: Path) -> None:
    checkpointer = tiered(tmp_path, policy=Policy("warn", failures=99))
    (base,) = save(checkpointer, 1)
    journalled(checkpointer, base, 1, *range(2, journal_until + 1))
    with failing(tmp_path / "far", StoreUnavailable("gone")):
        start(checkpointer, 4)
        checkpointer._mirror.settle()
    resumed = tiered(tmp_path)
    _, commit = resumed.restore()
    assert (commit.update, replayed(resumed, commit)) == (4, [])
    journalled(resumed, commit, 4, 5, 6)
    resumed.close()
    assert held(tmp_path / "far") == [1, 4]
    for name in ("near", "gone"):
        again = tiered(tmp_path, name)
        _, commit = again.restore()
        assert (commit.update, replayed(again, commit)) == (4, [5, 6])


def test_a_damaged_base_of_a_journal_leaves_the_snapshots_before_it(tmp_path: Path) -> None:
    first = tiered(tmp_path, "a")
    save(first, 80, 90, 100)
    first.close()
    second = tiered(tmp_path, "a")
    _, base = second.restore()
    journalled(second, base, 100, *range(101, 106))
    second.close()
    shutil.rmtree(tmp_path / "a")
    newest = CommitLog(Store.open(str(tmp_path / "far"))).history().at(100)
    corrupt(str(tmp_path / "far"), newest.name)
    assert restored(tiered(tmp_path, "a")) == 90
    assert restored(tiered(tmp_path, "a"), 80) == 80


def test_a_journal_of_one_run_is_not_replayed_on_what_another_left_near(tmp_path: Path) -> None:
    first = tiered(tmp_path, "a")
    (base,) = save(first, 90)
    first.close()
    journalled(first, base, 90, 91, 92)
    shutil.copytree(tmp_path / "far", tmp_path / "aside")
    save(first, 100)
    first.close()
    shutil.rmtree(tmp_path / "far")
    (tmp_path / "aside").rename(tmp_path / "far")  # the first host died before the last tier had update 100
    second = tiered(tmp_path, "b")
    _, base = second.restore()
    assert base.update == 90
    journalled(second, base, 90, *range(91, 106))  # other bits; and it dies before its first snapshot
    third = tiered(tmp_path, "a")
    _, commit = third.restore()
    assert commit.update == 90, "what the second run made durable is newer than what the first one left near"
    assert replayed(third, commit) == list(range(91, 106))
    with pytest.raises(NoCheckpoint, match="no snapshot of update 100"):
        tiered(tmp_path, "a").restore(100)
    near, far = (Store.open(str(tmp_path / name)) for name in ("a", "far"))
    left = next(each for each in CommitLog(near).history().commits if each.update == 100)
    assert Recovery(far, Ranks(None), left, CommitLog(far).history().newest).last == 100, "and never on that"


def test_a_journal_leads_on_from_a_near_snapshot_of_the_update_that_its_run_went_on_from(tmp_path: Path) -> None:
    first = tiered(tmp_path)
    (base,) = save(first, 1)
    journalled(first, base, 1, 2, 3)
    second = tiered(tmp_path, policy=Policy("warn", failures=99))
    _, commit = second.restore()
    assert replayed(second, commit) == [2, 3]
    second.take_over(state_at(3))
    with second.journal(commit, 3, "update") as journal, failing(tmp_path / "far", StoreUnavailable("gone")):
        start(second, 3)
        second._mirror.settle()
        for update in (4, 5):
            journal.append(update, {}, {"gradient": Blob(torch.full((4,), float(update)))})
            journal.wait(update)
    assert (held(tmp_path / "near"), held(tmp_path / "far")) == ([3], [1])
    third = tiered(tmp_path)
    assert third.reach() == [(3, 5), (1, 5)]
    _, commit = third.restore()
    assert (commit.update, replayed(third, commit)) == (3, [4, 5]), "where it is said to lead, it leads"


def test_a_clean_up_planned_before_cannot_remove_what_a_later_copy_relies_on(tmp_path: Path) -> None:
    far = Store.open(str(tmp_path / "far"))
    left_near(tmp_path, 1, 2)
    with failing(tmp_path / "far", StoreUnavailable("gone"), "commits"), mock.patch.object(Store, "delete"):
        first = tiered(tmp_path)
        restored(first)
        with pytest.raises(StoreUnavailable):
            first.take_over(state_at(2))
    checkpointer = tiered(tmp_path)
    restored(checkpointer)
    with failing(tmp_path / "far", RuntimeError("killed here"), "parts"), mock.patch.object(Store, "delete"):
        checkpointer.take_over(state_at(2))
        checkpointer._mirror.settle()
    plan = Collector(far, mock.Mock(kept=lambda *_: dict.fromkeys(range(9), "")), grace=0.0).plan()
    assert [verdict for verdict in plan.going if verdict.name.startswith("packs/")]
    resumed = tiered(tmp_path)
    restored(resumed)
    resumed.take_over(state_at(2))
    resumed.close()
    for verdict in plan.going:
        far.delete(verdict.name)
    assert restored(Checkpointer(tmp_path / "far")) == 2
