"""Saving in the background, in one process."""

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from gradwire.checkpoint import (
    Checkpointer,
    CheckpointWriteError,
    Policy,
    State,
    StoreFull,
    StoreUnavailable,
    UnsupportedState,
    WriterFenced,
)
from gradwire.checkpoint.staging import Staging
from gradwire.checkpoint.store import Store
from tests.checkpoint.states import same_state, state_at

ROOT = Path(__file__).parents[2]
KEEP_GOING = Policy("warn", failures=3)


def start(checkpointer: Checkpointer, update: int) -> Any:
    return checkpointer.start(state_at(update), {"updates": update})


@contextmanager
def held_up() -> Iterator[threading.Event]:
    """Writes of packs wait until the event is set."""
    go, put = threading.Event(), Store.put_content

    def slow(self: Store, folder: str, *arguments: Any) -> bool:
        assert folder != "packs" or go.wait(240)
        return put(self, folder, *arguments)

    with mock.patch.object(Store, "put_content", slow):
        try:
            yield go
        finally:
            go.set()


@contextmanager
def failing(error: Exception) -> Iterator[None]:
    """Writes of packs fail."""
    with mock.patch.object(Store, "put_content", side_effect=error):
        yield


def packs_and_parts(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for name in ("packs", "parts") for path in (folder / name).iterdir()}


def test_training_goes_on_while_the_state_of_the_start_is_written(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    live, metrics = state_at(1), {"eval/loss": 0.5}
    with held_up() as go:
        saving = checkpointer.start(live, {"updates": 1}, metrics, reason="end")
        assert not saving.done
        assert saving.seconds is None
        live.shared["model"]["weight"].zero_()
        live.shared["optimizer"]["state"][0]["step"].add_(1)
        live.local["residual"].zero_()
        metrics["eval/loss"] = 0.0
        go.set()
        commit = saving.wait()
    assert saving.done
    assert saving.seconds is not None
    assert saving.seconds >= saving.stall > 0
    state, restored = checkpointer.restore()
    assert restored == commit
    assert (commit.update, commit.metrics, commit.reason) == (1, {"eval/loss": 0.5}, "end")
    assert same_state(state, state_at(1))


def test_without_a_copy_the_start_returns_when_the_same_bits_are_durable(tmp_path: Path) -> None:
    for update in (1, 2):
        with Checkpointer(tmp_path / "copy") as copying, Checkpointer(tmp_path / "none", stage="none") as waiting:
            start(copying, update)
            saving = start(waiting, update)
            assert saving.done
            assert saving.wait() == waiting.latest()
    for place in ("copy", "none"):
        assert same_state(Checkpointer(tmp_path / place).restore()[0], state_at(2))
    assert len(packs_and_parts(tmp_path / "none")) == len(packs_and_parts(tmp_path / "copy")) == 4


def test_the_next_start_waits_for_the_snapshot_under_way(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    with held_up() as go:
        first = start(checkpointer, 1)
        second: list[Any] = []
        starting = threading.Thread(target=lambda: second.append(start(checkpointer, 2)))
        starting.start()
        starting.join(0.2)
        assert starting.is_alive()
        assert not first.done
        go.set()
        starting.join(240)
    assert first.done
    assert second[0].wait().parent.sequence == first.wait().sequence
    assert same_state(checkpointer.restore(1)[0], state_at(1))
    assert same_state(checkpointer.restore(2)[0], state_at(2))


def test_saves_and_restores_wait_for_the_snapshot_under_way(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    with held_up() as go:
        start(checkpointer, 1)
        threading.Timer(0.1, go.set).start()
        assert checkpointer.restore()[1].update == 1
    with held_up() as go:
        start(checkpointer, 2)
        threading.Timer(0.1, go.set).start()
        checkpointer.save(state_at(3), {"updates": 3})
    assert [commit.update for commit in checkpointer.commits()] == [1, 2, 3]


def test_old_snapshots_go_after_the_commit(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep_last=1) as checkpointer:
        for update in (1, 2, 3):
            start(checkpointer, update)
    assert [commit.update for commit in checkpointer.commits()] == [3]
    assert len(packs_and_parts(tmp_path)) == 2


def test_leaving_the_with_block_waits_and_gives_the_memory_back(tmp_path: Path) -> None:
    released = []
    with mock.patch.object(Staging, "release", lambda self: released.append(1)), Checkpointer(tmp_path) as checkpointer:
        saving = start(checkpointer, 1)
    assert saving.done
    assert released == [1]
    assert checkpointer.latest() == saving.wait()


def test_a_failure_is_raised_by_the_next_start_and_the_last_commit_stays(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    start(checkpointer, 1)
    checkpointer.restore()
    with failing(StoreUnavailable("gone")):
        start(checkpointer, 2)
        with pytest.raises(CheckpointWriteError, match=r"the last commit stays\. rank 0: gone"):
            start(checkpointer, 3)
    assert checkpointer.restore()[1].update == 1
    assert start(checkpointer, 4).wait().update == 4


def test_a_failure_that_wait_raised_is_not_raised_again(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    with failing(StoreUnavailable("gone")):
        saving = start(checkpointer, 1)
        with pytest.raises(CheckpointWriteError, match="rank 0: gone"):
            saving.wait()
    assert start(checkpointer, 2).wait().update == 2


def test_leaving_raises_the_failure_unless_something_else_is_being_raised(tmp_path: Path) -> None:
    with failing(StoreUnavailable("gone")):
        with pytest.raises(CheckpointWriteError, match="gone"), Checkpointer(tmp_path) as checkpointer:
            start(checkpointer, 1)
        with pytest.raises(KeyError, match="mine"), Checkpointer(tmp_path) as checkpointer:
            start(checkpointer, 1)
            raise KeyError("mine")


@pytest.mark.parametrize("stage", ["copy", "none"])
def test_warn_lets_the_run_go_on_until_too_many_have_failed(
    stage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(tmp_path, stage=stage, policy=Policy("warn", failures=2))
    start(checkpointer, 1)
    with failing(StoreUnavailable("gone")), caplog.at_level(logging.WARNING):
        start(checkpointer, 2)
        start(checkpointer, 3)
        with pytest.raises(CheckpointWriteError, match="gone"):
            start(checkpointer, 4)
            start(checkpointer, 5)
        assert sum("no snapshot was committed" in message for message in caplog.messages) == 2
    assert checkpointer.standing.failed == 3
    assert start(checkpointer, 6).wait().update == 6
    checkpointer.close()
    assert checkpointer.standing.failed == 0


def test_a_full_store_asks_for_less_and_pauses_before_anything_is_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(tmp_path, policy=Policy("warn", failures=9))
    start(checkpointer, 1).wait()
    asked = []
    with mock.patch("shutil.disk_usage", return_value=mock.Mock(free=1000)), caplog.at_level(logging.WARNING):
        for update in (2, 3, 4):
            start(checkpointer, update)
            asked.append((checkpointer.standing.journal, checkpointer.standing.widening))
        with mock.patch.object(Staging, "copy", side_effect=AssertionError("copied")):
            saving = start(checkpointer, 5)
        with pytest.raises(CheckpointWriteError, match=r"No space left.*1000 are free") as raised:
            saving.wait()
        assert isinstance(raised.value.__cause__, StoreFull)
    assert asked == [(True, 1), (False, 1), (False, 2)]
    assert checkpointer.standing.paused
    assert "the journal is dropped; the interval between snapshots is doubled; saving pauses" in caplog.text
    assert start(checkpointer, 6).wait().update == 6
    assert checkpointer.restore()[1].update == 6
    assert not checkpointer.standing.paused


def test_a_snapshot_without_room_writes_nothing(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(state_at(1), {"updates": 1})
    before = packs_and_parts(tmp_path)
    with (
        mock.patch("shutil.disk_usage", return_value=mock.Mock(free=1000)),
        mock.patch.object(Store, "put_content", side_effect=AssertionError("written")),
        pytest.raises(CheckpointWriteError, match=r"rank 0: .*No space left.*bytes, and 1000 are free\. Free space"),
    ):
        checkpointer.save(state_at(2), {"updates": 2})
    assert packs_and_parts(tmp_path) == before


def test_a_snapshot_that_repeats_most_of_the_one_before_needs_little_room(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    frozen = torch.randn(10**6)
    for update in (1, 2):
        checkpointer.save(State({"frozen": frozen, "update": update}), {"updates": update})
    with mock.patch("shutil.disk_usage", return_value=mock.Mock(free=10**6)):
        assert checkpointer.save(State({"frozen": frozen, "update": 3}), {"updates": 3}).update == 3
        again = Checkpointer(tmp_path)
        again.restore()
        assert again.save(State({"frozen": frozen, "update": 4}), {"updates": 4}).update == 4


def test_a_fenced_writer_stops_whatever_the_policy(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, policy=KEEP_GOING)
    start(checkpointer, 1)
    checkpointer.restore()
    Checkpointer(tmp_path).save(state_at(2), {"updates": 2})
    start(checkpointer, 3)
    with pytest.raises(WriterFenced, match=r"this writer.*must stop"):
        checkpointer.close()


def test_what_cannot_be_saved_fails_the_snapshot_and_not_the_start(tmp_path: Path) -> None:
    saving = Checkpointer(tmp_path).start(State({"a": {1, 2}}), {"updates": 1})
    with pytest.raises(CheckpointWriteError, match=r"rank 0: shared\.a is a builtins\.set"):
        saving.wait()
    saving = Checkpointer(tmp_path).start(State({"a": torch.empty(1, device="meta")}), {"updates": 1})
    with pytest.raises(CheckpointWriteError, match=r"rank 0: shared\.a is on the meta device") as raised:
        saving.wait()
    assert isinstance(raised.value.__cause__, UnsupportedState)


def test_an_error_that_nobody_foresaw_is_raised_whatever_the_policy(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, policy=KEEP_GOING)
    with mock.patch("gradwire.checkpoint.saving.share_out", side_effect=ZeroDivisionError("a bug")):
        start(checkpointer, 1)
        with pytest.raises(ZeroDivisionError, match="a bug"):
            start(checkpointer, 2)


def test_what_was_not_captured_stands_in_the_commit_and_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(tmp_path)
    state = State({"a": 1}, not_captured=("sampler", "callback 'mine'"))
    with caplog.at_level(logging.WARNING):
        checkpointer.save(state, {"updates": 1})
        assert re.search(r"not captured.*: sampler, callback 'mine'", caplog.text)
        caplog.clear()
        commit = checkpointer.start(state, {"updates": 2}).wait()
        assert caplog.text == ""
        checkpointer.save(State({"a": 1}, not_captured=("sampler", "new")), {"updates": 3})
        assert re.search(r"not captured.*: new$", caplog.text, re.MULTILINE)
    assert commit.not_captured == ("sampler", "callback 'mine'")
    assert checkpointer.restore(2)[1].not_captured == ("sampler", "callback 'mine'")


def test_a_stage_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stage must be 'copy' or 'none', found 'gpu'"):
        Checkpointer(tmp_path, stage="gpu")  # type: ignore[arg-type]


MEASURED = """
import sys, torch
from gradwire.checkpoint import Checkpointer, State
from gradwire.trainer.host_memory import resident_peak
torch.set_num_threads(1)
with Checkpointer(sys.argv[1] + "-warm", keep_last=1, stage=sys.argv[2]) as checkpointer:
    checkpointer.start(State({"weights": torch.rand(2**20)}), {"updates": 1})
state = {"weights": torch.rand(48 * 2**20), "moments": torch.rand(16 * 2**20)}
resident_peak()
before = resident_peak()
with Checkpointer(sys.argv[1], keep_last=1, stage=sys.argv[2]) as checkpointer:
    for update in range(2):
        checkpointer.start(State(state), {"updates": update})
        state["moments"].add_(1)
print((resident_peak() - before) // 2**20)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "copies"), [("copy", 1), ("none", 0)])
def test_memory_beyond_the_state_is_one_copy_however_many_snapshots(stage: str, copies: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "store"), stage]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    megabytes = int(finished.stdout)
    assert 256 * copies <= megabytes < 256 * copies + 256, "beside the copy: two packs, and one that is compared"
