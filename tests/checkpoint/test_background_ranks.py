"""Saving in the background, by several real processes under gloo."""

import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from benchmarks.processes import FORKED
from gradwire.checkpoint import Checkpointer, CheckpointError, CheckpointWriteError, Policy, State, StoreFull
from gradwire.checkpoint.store import Store
from gradwire.trainer.launch.ports import free_port
from tests.checkpoint.states import same, same_state, state_at
from tests.ranks import run_ranks


def state(rank: int, update: int) -> State:
    return State(state_at(update).shared, {"residual": torch.full((50,), float(rank + update)), "rank": rank})


def checkpointer(folder: str, **settings: Any) -> Checkpointer:
    return Checkpointer(folder, group=dist.group.WORLD, **settings)


def _goes_on_training(rank: int, folder: str) -> None:
    with checkpointer(folder) as saver:
        for update in range(1, 4):
            live = state(rank, update)
            saving = saver.start(live, {"updates": update})
            live.shared["model"]["weight"].zero_()
            live.local["residual"].zero_()
            for _ in range(20):
                total = torch.ones(1000)
                dist.all_reduce(total)
                assert total[0] == dist.get_world_size()
            assert saving.wait().update == update
            restored, _ = saver.restore(update)
            assert same(restored.shared, state(rank, update).shared)
            assert same(restored.local, state(rank, update).local)


def test_training_communicates_and_changes_its_state_while_it_is_saved(tmp_path: Path) -> None:
    run_ranks(2, _goes_on_training, str(tmp_path))


def _write_fails_on_one(rank: int, folder: str) -> None:
    saver = checkpointer(folder)
    saver.start(state(rank, 1), {"updates": 1}).wait()
    full = mock.patch.object(Store, "put_content", side_effect=StoreFull("no space left on rank 1's disk"))
    if rank == 1:
        full.start()
    saving = saver.start(state(rank, 2), {"updates": 2})
    with pytest.raises(CheckpointWriteError, match=r"the last commit stays\. rank 1: no space left") as raised:
        saving.wait()
    assert isinstance(raised.value.__cause__, StoreFull), "every rank knows why"
    saver.start(state(rank, 3), {"updates": 3})
    with pytest.raises(CheckpointWriteError, match="rank 1: no space left"):
        saver.start(state(rank, 4), {"updates": 4})
    if rank == 1:
        full.stop()
    restored, commit = saver.restore()
    assert commit.update == 1
    assert same(restored.local, state(rank, 1).local)
    assert saver.start(state(rank, 5), {"updates": 5}).wait().update == 5
    assert same_state(saver.restore()[0], state(rank, 5))
    saver.close()


def test_a_write_that_fails_on_one_rank_fails_on_all_and_leaves_the_last_commit(tmp_path: Path) -> None:
    run_ranks(2, _write_fails_on_one, str(tmp_path))


def _all_go_on(rank: int, folder: str) -> None:
    saver = checkpointer(folder, policy=Policy("warn", failures=2))
    with mock.patch.object(Store, "put_content", side_effect=StoreFull("full")) if rank == 1 else mock.MagicMock():
        saver.start(state(rank, 1), {"updates": 1})
        saver.start(state(rank, 2), {"updates": 2})
        assert (saver.standing.failed, saver.standing.measures) == (1, 1)
        saver.start(state(rank, 3), {"updates": 3})
        assert (saver.standing.failed, saver.standing.measures) == (2, 2)
        with pytest.raises(CheckpointWriteError, match="rank 1: full"):
            saver.close()


def test_all_ranks_go_on_and_give_up_together(tmp_path: Path) -> None:
    run_ranks(2, _all_go_on, str(tmp_path))


def _cannot_be_copied_on_one(rank: int, folder: str) -> None:
    saver = checkpointer(folder)
    own = {"x": torch.empty(3, device="meta" if rank == 1 else "cpu")}
    saving = saver.start(State({"a": 1}, own), {"updates": 1})
    with pytest.raises(CheckpointWriteError, match=r"rank 1: local\.x is on the meta device"):
        saving.wait()
    saver.close()


def test_a_state_that_one_rank_cannot_copy_fails_on_all(tmp_path: Path) -> None:
    run_ranks(2, _cannot_be_copied_on_one, str(tmp_path))


def _not_captured(rank: int, folder: str) -> None:
    saver = checkpointer(folder)
    commit = saver.save(State({"a": 1}, not_captured=("sampler", f"of rank {rank}")), {"updates": 1})
    assert commit.not_captured == ("sampler", "of rank 0", "of rank 1")


def test_what_any_rank_did_not_capture_is_listed(tmp_path: Path) -> None:
    run_ranks(2, _not_captured, str(tmp_path))


def _same_bits(rank: int, folder: str) -> None:
    for stage in ("copy", "none"):
        with checkpointer(f"{folder}/{stage}", stage=stage) as saver:
            saver.start(state(rank, 1), {"updates": 1})
            saver.start(state(rank, 2), {"updates": 2})


def test_without_a_copy_the_ranks_write_the_same_bits(tmp_path: Path) -> None:
    run_ranks(2, _same_bits, str(tmp_path))
    written = [
        sorted(path.stat().st_size for folder in ("packs", "parts") for path in (tmp_path / stage / folder).iterdir())
        for stage in ("copy", "none")
    ]
    assert written[0] == written[1]
    assert len(written[0]) >= 6


def _dies_while_it_writes(rank: int, folder: str, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    saver = checkpointer(folder)
    saver.start(state(rank, 1), {"updates": 1}).wait()
    if rank == 1:
        mock.patch.object(Store, "put_content", lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)).start()
    saving = saver.start(state(rank, 2), {"updates": 2})
    with pytest.raises(CheckpointError, match="rank 0 lost touch with the other ranks"):
        saving.wait()
    Path(folder, "told").touch()
    os._exit(0)


def test_a_rank_that_is_killed_while_it_writes_leaves_the_last_commit_and_is_missed(tmp_path: Path) -> None:
    port = free_port()
    processes = [FORKED.Process(target=_dies_while_it_writes, args=(rank, str(tmp_path), port)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL]
    assert (tmp_path / "told").exists()
    shared, locals_, commit = Checkpointer(tmp_path).restore_resized()
    assert commit.update == 1
    assert same(shared, state(0, 1).shared)
    assert same(locals_, [state(0, 1).local, state(1, 1).local])
