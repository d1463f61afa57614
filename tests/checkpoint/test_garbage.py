"""Garbage goes, is explained, and never is what a snapshot, a reader or a save under way needs."""

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import pytest

from gradwire.checkpoint import Checkpointer, NoCheckpoint
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.garbage import GRACE, Collector
from gradwire.checkpoint.pruning import plan_prune
from gradwire.checkpoint.retention import KeepAll, Retention
from gradwire.checkpoint.snapshot import PartWriter
from gradwire.checkpoint.source import Source
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tags
from gradwire.checkpoint.verdicts import Plan
from tests.checkpoint.places import corrupt, objects, place, s3_endpoint, save  # noqa: F401
from tests.checkpoint.states import same_state, state_at

NEWEST = Retention(1, 0, "eval/loss")


def prune(url: str, retention: Retention = NEWEST, grace: float = GRACE) -> Plan:
    collector, plan = plan_prune(Store.open(url), retention, grace)
    collector.carry_out(plan)
    return plan


def reasons(plan: Plan) -> dict[str, str]:
    return {verdict.name: verdict.reason for verdict in plan.verdicts}


def updates(url: str) -> list[int]:
    return [commit.update for commit in CommitLog(Store.open(url)).history().commits]


def aged(folder: Path, *names: str) -> None:
    """Make objects older than every commit."""
    for name in names:
        os.utime(folder / name, (1, 1))


def test_a_dry_run_tells_of_every_object_why_it_goes_or_stays_and_changes_nothing(place: str) -> None:  # noqa: F811
    checkpointer = save(place, range(1, 5), {1: 0.5, 2: 3.0, 3: 2.0, 4: 1.0})
    store, commits = Store.open(place), {commit.update: commit for commit in checkpointer.commits()}
    Tags(store).create("gold", commits[2])
    before = objects(place)
    _, plan = plan_prune(store, Retention(1, 1, "eval/loss"), grace=0.0)
    assert objects(place) == before == {verdict.name for verdict in plan.verdicts}
    told = reasons(plan)
    assert told[commits[1].name] == "among the best 1 by eval/loss"
    assert told[commits[2].name] == "tagged gold"
    assert told[commits[3].name] == "nothing asks to keep it"
    assert told[commits[4].name] == "among the newest 1"
    assert told[commits[4].parts[0].name] == f"update 4 ({commits[4].name}) needs it"
    assert told[f"commits/{1:020d}"] == "a writer's claim, which keeps earlier writers out"
    assert told["tags/gold"] == "tags stay until they are deleted"
    gone = {verdict.name for verdict in plan.going}
    assert {name.partition("/")[0] for name in gone} == {"commits", "parts", "packs"}
    assert commits[3].name in gone
    assert all(verdict.size for verdict in plan.verdicts if verdict.name.startswith(("parts", "packs")))


def test_pruning_removes_what_the_dry_run_says(place: str) -> None:  # noqa: F811
    save(place, range(1, 5))
    before = objects(place)
    plan = prune(place, grace=0.0)
    assert before - objects(place) == {verdict.name for verdict in plan.going}
    assert updates(place) == [4]
    assert same_state(Checkpointer(place).restore()[0], state_at(4))
    assert len(Store.open(place).list("packs")) == len(Store.open(place).list("parts")) == 1


def test_one_every_so_many_updates_stays(tmp_path: Path) -> None:
    save(str(tmp_path), range(1, 12))
    prune(str(tmp_path), Retention(1, 0, "eval/loss", keep_every=4))
    assert updates(str(tmp_path)) == [4, 8, 11]
    save(str(tmp_path), range(12, 18))
    prune(str(tmp_path), Retention(1, 0, "eval/loss", keep_every=4))
    assert updates(str(tmp_path)) == [4, 8, 12, 16, 17], "what stayed stays"


def test_a_save_under_way_is_left_alone_and_ends_whole(place: str) -> None:  # noqa: F811
    checkpointer = save(place, range(1, 3))
    write = PartWriter.write

    def pruned_meanwhile(writer: PartWriter, *arguments: object, **more: object) -> object:
        ref = write(writer, *arguments, **more)  # type: ignore[arg-type]
        prune(place)
        return ref

    with mock.patch.object(PartWriter, "write", pruned_meanwhile):
        checkpointer.save(state_at(3), {"updates": 3})
    assert updates(place) == [2, 3]
    assert same_state(Checkpointer(place).restore(3)[0], state_at(3))


def test_what_a_save_under_way_found_and_wrote_again_is_left_alone(tmp_path: Path) -> None:
    checkpointer = save(str(tmp_path), range(1, 3))
    part = PartWriter(Store.open(str(tmp_path)), 0)
    part.write(state_at(3).shared, state_at(3).local)  # of a save that was killed long ago
    left = objects(str(tmp_path))
    aged(tmp_path, *(name for name in left if name.startswith(("parts", "packs"))))
    write = PartWriter.write

    def pruned_meanwhile(writer: PartWriter, *arguments: object, **more: object) -> object:
        ref = write(writer, *arguments, **more)  # type: ignore[arg-type]
        prune(str(tmp_path))
        return ref

    with mock.patch.object(PartWriter, "write", pruned_meanwhile):
        checkpointer.save(state_at(3), {"updates": 3})
    assert same_state(Checkpointer(str(tmp_path)).restore(3)[0], state_at(3))


def test_the_leftovers_of_a_killed_save_go_once_a_commit_is_newer_or_a_day_has_passed(tmp_path: Path) -> None:
    save(str(tmp_path), range(1, 3))
    store = Store.open(str(tmp_path))
    PartWriter(store, 0).write(state_at(3).shared, state_at(3).local)
    plan = Collector(store, KeepAll()).plan()
    assert plan.going == ()
    assert sum(reason.startswith("newer than the newest commit") for reason in reasons(plan).values()) == 2
    tomorrow = Collector(store, KeepAll(), now=lambda: time.time() + 90_000.0).plan()
    assert len(tomorrow.going) == 2
    aged(tmp_path, *(verdict.name for verdict in tomorrow.going))
    assert Collector(store, KeepAll()).plan().going == tomorrow.going


def test_where_a_store_tells_no_times_what_may_be_in_use_stays(tmp_path: Path) -> None:
    save(str(tmp_path), range(1, 3))
    store = Store.open(str(tmp_path))
    PartWriter(store, 0).write(state_at(3).shared, state_at(3).local)
    with mock.patch.object(Store, "modified", return_value=None):
        plan = Collector(store, KeepAll(), grace=0.0).plan()
    assert plan.going == ()
    assert "does not tell how old" in " ".join(reasons(plan).values())


def test_the_last_snapshot_that_is_whole_stays_whatever_retention_says(place: str) -> None:  # noqa: F811
    commits = save(place, range(1, 5)).commits()
    for commit in commits[2:]:
        corrupt(place, next(iter(_packs(place, commit))))
    plan = prune(place)
    assert updates(place) == [2, 4]
    assert reasons(plan)[commits[1].name] == "the last that was read back whole"
    assert same_state(Checkpointer(place).restore()[0], state_at(2))


def _packs(url: str, commit: object) -> list[str]:
    from gradwire.checkpoint.outline import read_outline

    return [pack.name for part in read_outline(Store.open(url), commit).parts for pack in part.packs]  # type: ignore[arg-type]


def test_the_writer_removes_nothing_while_its_newest_snapshot_is_not_all_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = save(str(tmp_path), range(1, 2), keep_last=1)
    listed = Store.list

    def without_packs(store: Store, folder: str) -> list[str]:
        return [] if folder == "packs" else listed(store, folder)

    with mock.patch.object(Store, "list", without_packs):
        checkpointer.save(state_at(2), {"updates": 2})
    assert updates(str(tmp_path)) == [1, 2]
    assert "none is whole, so that nothing goes" in caplog.text


def test_a_damaged_tag_keeps_every_commit(tmp_path: Path) -> None:
    commit = save(str(tmp_path), range(1, 4)).at(1)
    Tags(Store.open(str(tmp_path))).create("gold", commit)
    corrupt(str(tmp_path), "tags/gold")
    plan = prune(str(tmp_path))
    assert plan.going == ()
    assert reasons(plan)[commit.name] == "the tag 'gold' cannot be read and may mean it"


def test_a_commit_that_is_tagged_while_it_goes_comes_back(place: str) -> None:  # noqa: F811
    commit, store = save(place, range(1, 4)).at(1), Store.open(place)
    collector, plan = plan_prune(store, NEWEST)
    Tags(store).create("gold", commit)
    removed = collector.carry_out(plan)
    assert updates(place) == [1, 3]
    assert commit.name not in removed
    assert same_state(Checkpointer(place).restore(1)[0], state_at(1))


def test_a_reader_whose_snapshot_goes_is_told_so(tmp_path: Path) -> None:
    save(str(tmp_path), range(1, 4))
    opened, pruned = Store.opened, []

    def prune_first(store: Store, name: str, length: int) -> AbstractContextManager[Source]:
        if name.startswith("packs/") and not pruned:
            pruned.append(name)
            prune(str(tmp_path), grace=0.0)
        return opened(store, name, length)

    reader = Checkpointer(str(tmp_path))
    with (
        mock.patch.object(Store, "opened", prune_first),
        pytest.raises(NoCheckpoint, match=r"no snapshot of update 1; it has updates: 3"),
    ):
        reader.restore(1)
    assert reader.damaged == ()


def test_what_a_writer_that_went_back_goes_on_from_stays(tmp_path: Path) -> None:
    save(str(tmp_path), range(1, 5))
    checkpointer = Checkpointer(str(tmp_path), keep_last=99)
    checkpointer.restore(1)
    write = PartWriter.write

    def pruned_meanwhile(writer: PartWriter, *arguments: object, **more: object) -> object:
        ref = write(writer, *arguments, **more)  # type: ignore[arg-type]
        prune(str(tmp_path))
        return ref

    with mock.patch.object(PartWriter, "write", pruned_meanwhile):
        checkpointer.save(state_at(1), {"updates": 5})
    assert updates(str(tmp_path)) == [1, 4, 5]
    assert same_state(Checkpointer(str(tmp_path)).restore(5)[0], state_at(1))


def test_a_writer_that_is_replaced_while_it_cleans_up_stops(tmp_path: Path) -> None:
    checkpointer = save(str(tmp_path), range(1, 4))
    newest = checkpointer.commits()[-1].sequence
    store = Store.open(str(tmp_path))
    collector = Collector(store, NEWEST)
    plan = collector.plan(writer_at=newest)
    assert len(plan.going) == 6
    save(str(tmp_path), range(4, 5))
    assert collector.carry_out(plan) == []
    assert updates(str(tmp_path)) == [1, 2, 3, 4]
