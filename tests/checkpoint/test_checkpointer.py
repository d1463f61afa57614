import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.checkpoint import (
    Checkpointer,
    CheckpointWriteError,
    DamagedCheckpoint,
    NoCheckpoint,
    State,
    StoreError,
    UnsupportedFormat,
    WriterFenced,
)
from gradwire.checkpoint.commit import seal
from gradwire.checkpoint.files import RealFiles
from gradwire.checkpoint.fsck import check
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.weights import load_weights
from gradwire.trainer.host_memory import resident_peak
from tests.checkpoint.places import newest_objects
from tests.checkpoint.states import same_state, state_at


@pytest.fixture(params=["path", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "path" else f"memory:/{tmp_path}"


def save(checkpointer: Checkpointer, *updates: int) -> None:
    for update in updates:
        checkpointer.save(state_at(update), {"updates": update})


def updates(checkpointer: Checkpointer) -> list[int]:
    return [commit.update for commit in checkpointer.commits()]


def test_what_is_restored_is_what_was_saved(url: str) -> None:
    saved = Checkpointer(url, writer="me").save(
        state_at(5), {"updates": 5, "samples": 160}, {"eval/loss": 0.1, "odd": math.inf}, reason="preempted"
    )
    state, commit = Checkpointer(url).restore()
    assert same_state(state, state_at(5))
    assert commit == saved == Checkpointer(url).latest() == Checkpointer(url).at(5)
    assert (commit.update, commit.reason, commit.world_size, commit.parent) == (5, "preempted", 1, None)
    assert (commit.clock, commit.metrics) == ({"updates": 5, "samples": 160}, {"eval/loss": 0.1, "odd": math.inf})
    assert commit.captured == {"shared": ("model", "optimizer", "average", "update"), "local": ("residual",)}
    assert commit.writer.identity == "me"


def test_restored_tensors_are_independent_of_each_other(url: str) -> None:
    checkpointer = Checkpointer(url)
    save(checkpointer, 1)
    model = checkpointer.restore()[0].shared["model"]
    model["weight"].zero_()
    assert torch.equal(model["tied"], state_at(1).shared["model"]["weight"])


def test_a_whole_training_state_round_trips(url: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(16, 4)).sum().backward()
    optimizer.step()
    Checkpointer(url).save(
        State({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}),
        {"updates": 1},
    )
    state, _ = Checkpointer(url).restore()
    other = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    again = torch.optim.AdamW(other.parameters(), lr=1.0)
    other.load_state_dict(state.shared["model"])
    again.load_state_dict(state.shared["optimizer"])
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(optimizer.state[one]["exp_avg_sq"], again.state[two]["exp_avg_sq"])
    assert again.param_groups[0]["betas"] == (0.9, 0.999)
    torch.set_rng_state(state.shared["rng"])


def test_an_exact_update_is_restored_and_a_missing_one_named(url: str) -> None:
    checkpointer = Checkpointer(url, keep_last=5)
    save(checkpointer, 10, 20, 30)
    assert same_state(checkpointer.restore(20)[0], state_at(20))
    with pytest.raises(NoCheckpoint, match=r"no snapshot of update 25; it has updates: 10, 20, 30"):
        Checkpointer(url).restore(25)


def test_an_empty_store_has_no_checkpoint(url: str) -> None:
    assert Checkpointer(url).latest() is None
    assert Checkpointer(url).commits() == []
    with pytest.raises(NoCheckpoint, match="holds no snapshot"):
        Checkpointer(url).restore()


def test_a_resumed_run_continues_the_chain(url: str) -> None:
    save(Checkpointer(url), 1, 2)
    resumed = Checkpointer(url)
    _, restored = resumed.restore()
    commit = resumed.save(state_at(3), {"updates": 3})
    assert commit.parent is not None
    assert (commit.parent.sequence, commit.parent.digest) == (restored.sequence, restored.digest)
    assert updates(resumed) == [1, 2, 3]
    assert commit.epoch > restored.epoch


def test_a_rollback_leaves_the_abandoned_branch_out(url: str) -> None:
    save(Checkpointer(url, keep_last=9), 1, 2, 3, 4)
    rolled_back = Checkpointer(url, keep_last=9)
    rolled_back.restore(2)
    rolled_back.save(State({"branch": "new"}), {"updates": 3})
    assert updates(rolled_back) == [1, 2, 3]
    assert rolled_back.restore(3)[0].shared == {"branch": "new"}
    with pytest.raises(NoCheckpoint, match=r"no snapshot of update 4 \(one was abandoned by a rollback\)"):
        rolled_back.restore(4)


def test_a_rollback_within_one_process_starts_a_branch_too(url: str) -> None:
    checkpointer = Checkpointer(url, keep_last=9)
    save(checkpointer, 1, 2, 3)
    checkpointer.restore(1)
    save(checkpointer, 2, 4)
    assert updates(checkpointer) == [1, 2, 4]
    assert len(checkpointer.commits()[-1].ancestry) == 2


def test_a_writer_that_was_taken_over_is_stopped_and_told_by_whom(url: str) -> None:
    zombie = Checkpointer(url, writer="zombie")
    save(zombie, 1)
    successor = Checkpointer(url, writer="successor")
    successor.restore()
    save(successor, 2)
    with pytest.raises(WriterFenced, match=r"'successor' took over.*'zombie', must stop"):
        save(zombie, 3)
    assert same_state(Checkpointer(url).restore()[0], state_at(2))
    for update in range(3, 9):  # retention must not open the zombie's number again
        save(successor, update)
    with pytest.raises(WriterFenced):
        save(zombie, 4)
    assert same_state(successor.restore()[0], state_at(8))


def test_a_store_with_another_runs_snapshots_is_pointed_out(url: str, caplog: pytest.LogCaptureFixture) -> None:
    save(Checkpointer(url), 7)
    assert "already holds" not in caplog.text
    save(Checkpointer(url), 1)
    assert "already holds snapshots up to update 7, which this run does not continue from" in caplog.text


@pytest.mark.parametrize(
    ("state", "clock", "metrics", "message"),
    [
        (State({"model": object()}), {"updates": 1}, {}, "rank 0: shared.model is a builtins.object"),
        (State({}, {"x": {1}}), {"updates": 1}, {}, "rank 0: local.x is a builtins.set"),
        (State([1]), {"updates": 1}, {}, "shared is a list"),  # type: ignore[arg-type]
        (State({}), {"samples": 1}, {}, "clock must count 'updates'"),
        (State({}), {"updates": 1.5}, {}, "clock must count 'updates'"),
        (State({}), {"updates": 1}, {"loss": "low"}, "metrics must map names to numbers"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_the_last_commit_stays(
    state: State, clock: dict[str, Any], metrics: dict[str, Any], message: str, tmp_path: Path
) -> None:
    checkpointer = Checkpointer(str(tmp_path))
    save(checkpointer, 1)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointWriteError, match=f"the last commit stays.*{message}"):
        checkpointer.save(state, clock, metrics)
    assert sorted(tmp_path.rglob("*")) == before
    save(checkpointer, 2)
    assert updates(checkpointer) == [1, 2]


def test_the_newest_whole_one_is_used_and_the_damaged_one_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(Checkpointer(str(tmp_path)), 1, 2, 3)
    newest = Checkpointer(str(tmp_path)).at(3)
    (tmp_path / newest.parts[0].name).unlink()
    checkpointer = Checkpointer(str(tmp_path))
    state, commit = checkpointer.restore()
    assert commit.update == 2
    assert same_state(state, state_at(2))
    assert checkpointer.damaged[0].startswith(f"the snapshot of update 3 ({newest.name}) is damaged")
    assert f"{newest.name}) is damaged" in caplog.text
    assert "restored update 2" in caplog.text
    with pytest.raises(DamagedCheckpoint, match=r"update 3 .*is damaged.*is missing"):
        checkpointer.restore(3)
    save(checkpointer, 3)
    assert updates(checkpointer) == [1, 2, 3]
    assert same_state(Checkpointer(str(tmp_path)).restore()[0], state_at(3))


def test_a_bad_sector_costs_what_lies_on_it_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Checkpointer(str(tmp_path)), 1, 2)
    bad = newest_objects(tmp_path)["packs"]

    def open_file(self: RealFiles, path: Path) -> int:
        if path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return opened(self, path)

    opened = RealFiles.open
    monkeypatch.setattr(RealFiles, "open", open_file)
    checkpointer = Checkpointer(str(tmp_path))
    assert checkpointer.restore()[1].update == 1
    report = check(Store.open(str(tmp_path)))
    assert [(each.name, each.commits) for each in report.findings] == [(f"packs/{bad.name}", (3,))]
    assert [commit.update for commit in report.whole] == [1]
    save(checkpointer, 3)
    assert Checkpointer(str(tmp_path)).restore()[1].update == 3


def test_of_two_snapshots_of_an_update_the_whole_one_is_used(tmp_path: Path) -> None:
    save(Checkpointer(str(tmp_path)), 1)
    branch = Checkpointer(str(tmp_path))
    branch.restore()
    first, second = branch.latest(), branch.save(state_at(1), {"updates": 1}, {"loss": 1.0})
    assert first is not None
    damaged = tmp_path / second.parts[0].name
    damaged.rename(tmp_path / "away")
    for ref in ("latest", 1):
        _, commit = Checkpointer(str(tmp_path)).restore(ref)  # type: ignore[arg-type]
        assert commit == first
    assert load_weights(tmp_path, 1)[1] == first
    (tmp_path / first.parts[0].name).unlink(missing_ok=True)
    with pytest.raises(DamagedCheckpoint, match=rf"no whole snapshot of update 1: .*{second.name}.*{first.name}"):
        Checkpointer(str(tmp_path)).restore(1)


def test_a_damaged_pack_is_healed_when_the_same_state_is_saved_again(tmp_path: Path) -> None:
    save(Checkpointer(str(tmp_path)), 1, 2)
    newest = newest_objects(tmp_path)["packs"]
    newest.write_bytes(bytes(newest.stat().st_size))
    resumed = Checkpointer(str(tmp_path))
    assert resumed.restore()[1].update == 1
    save(resumed, 2)
    assert same_state(Checkpointer(str(tmp_path)).restore()[0], state_at(2))


def test_where_all_are_damaged_each_is_named(tmp_path: Path) -> None:
    save(Checkpointer(str(tmp_path)), 1, 2)
    for pack in (tmp_path / "packs").iterdir():
        pack.write_bytes(b"")
    with pytest.raises(DamagedCheckpoint, match=r"no whole snapshot: .*update 2.*update 1"):
        Checkpointer(str(tmp_path)).restore()


def test_a_damaged_commit_is_named_and_the_one_before_used(tmp_path: Path) -> None:
    save(Checkpointer(str(tmp_path)), 1, 2)
    name = Checkpointer(str(tmp_path)).at(2).name
    os.truncate(tmp_path / name, 100)
    checkpointer = Checkpointer(str(tmp_path))
    assert checkpointer.restore()[1].update == 1
    assert name in checkpointer.damaged[0]
    with pytest.raises(DamagedCheckpoint, match=f"no readable snapshot of update 2; .*{name}"):
        checkpointer.restore(2)


def test_a_snapshot_that_retention_removes_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradwire.checkpoint import checkpointer as module

    writer = Checkpointer(str(tmp_path), keep_last=1, keep_best=0)
    save(writer, 1)
    load, pruned = module.load_state, iter([lambda: save(writer, 2), lambda: None])

    def load_while_pruning(*arguments: Any) -> State:
        next(pruned)()
        return load(*arguments)

    monkeypatch.setattr(module, "load_state", load_while_pruning)
    reader = Checkpointer(str(tmp_path))
    state, commit = reader.restore()
    assert (commit.update, reader.damaged) == (2, ())
    assert same_state(state, state_at(2))


def test_a_store_of_a_later_format_is_neither_read_nor_written(tmp_path: Path) -> None:
    save(Checkpointer(str(tmp_path)), 1)
    (tmp_path / "commits" / f"{9:020d}").write_bytes(seal({"format": 2, "kind": "unheard of"}))
    with pytest.raises(UnsupportedFormat, match="install a newer gradwire"):
        Checkpointer(str(tmp_path)).restore()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointWriteError, match="install a newer gradwire"):
        save(Checkpointer(str(tmp_path)), 2)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unreadable_store_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "commits").write_text("a file in the folder's place")
    for action in (Checkpointer(str(tmp_path)).restore, Checkpointer(str(tmp_path)).latest):
        with pytest.raises(StoreError, match="cannot list commits"):
            action()


def test_saving_does_not_hold_a_second_copy_of_the_state(tmp_path: Path) -> None:
    state = State({"model": {str(i): torch.randn(8 * 2**20) for i in range(16)}})  # 512 MiB
    resident_peak()
    before = resident_peak()
    Checkpointer(str(tmp_path)).save(state, {"updates": 1})
    assert resident_peak() - before < 200 * 2**20
