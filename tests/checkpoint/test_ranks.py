"""Several real processes under gloo."""

from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from gradwire.checkpoint import Checkpointer, CheckpointWriteError, State, StoreFull, WorldSizeMismatch
from gradwire.checkpoint.store import Store
from tests.checkpoint.states import same
from tests.ranks import run_ranks

SHARED = {"model": {"w": torch.arange(12.0).reshape(3, 4)}, "lr": 0.1}


def local(rank: int) -> dict[str, object]:
    return {"residual": torch.full((rank + 1, 2), float(rank)), "rank": rank}


def checkpointer(folder: str) -> Checkpointer:
    return Checkpointer(folder, group=dist.group.WORLD)


def _save_and_restore(rank: int, folder: str) -> None:
    commit = checkpointer(folder).save(State(SHARED if rank == 0 else {"model": None}, local(rank)), {"updates": 3})
    assert [part.rank for part in commit.parts] == [0, 1]
    assert commit.captured == {"shared": ("model", "lr"), "local": ("residual", "rank")}
    state, restored = checkpointer(folder).restore()
    assert restored == commit
    assert same(state.shared, SHARED)
    assert same(state.local, local(rank))


def _restore_resized(rank: int, folder: str) -> None:
    with pytest.raises(WorldSizeMismatch, match=r"saved by 2 ranks.*residual, rank.*restored by 3.*restore_resized"):
        checkpointer(folder).restore()
    shared, locals_, commit = checkpointer(folder).restore_resized()
    assert (commit.world_size, commit.update) == (2, 3)
    assert same(shared, SHARED)
    assert same(locals_, [local(0), local(1)])


def test_each_rank_gets_its_own_back_and_another_world_size_gets_all(tmp_path: Path) -> None:
    run_ranks(2, _save_and_restore, str(tmp_path))
    run_ranks(3, _restore_resized, str(tmp_path))
    with pytest.raises(WorldSizeMismatch, match="restored by 1"):
        Checkpointer(str(tmp_path)).restore()
    assert same(Checkpointer(str(tmp_path)).restore_resized()[0], SHARED)


def _save_shared_only(rank: int, folder: str) -> None:
    checkpointer(folder).save(State(SHARED), {"updates": 3})


def _restore_shared(rank: int, folder: str) -> None:
    assert same(checkpointer(folder).restore()[0].shared, SHARED)


@pytest.mark.parametrize("world_size", [1, 3])
def test_shared_state_alone_restores_at_any_world_size(world_size: int, tmp_path: Path) -> None:
    run_ranks(2, _save_shared_only, str(tmp_path))
    run_ranks(world_size, _restore_shared, str(tmp_path))


def _one_rank_fails(rank: int, folder: str) -> None:
    saver = checkpointer(folder)
    saver.save(State(SHARED, local(rank)), {"updates": 1})
    full = mock.patch.object(Store, "put_content", side_effect=StoreFull("no space left on rank 1's disk"))
    with pytest.raises(CheckpointWriteError, match=r"the last commit stays\. rank 1: no space left on rank 1's disk"):
        if rank == 1:
            with full:
                saver.save(State({"model": torch.ones(99)}, {"x": torch.ones(rank + 5)}), {"updates": 2})
        else:
            saver.save(State({"model": torch.ones(99)}, {"x": torch.ones(rank + 5)}), {"updates": 2})
    assert same(saver.restore()[0].local, local(rank))
    assert saver.restore()[1].update == 1
    dist.barrier()
    assert len(list(Path(folder, "packs").iterdir())) == 2, "what the failed snapshot wrote is freed"
    dist.barrier()
    saver.save(State(SHARED, local(rank)), {"updates": 3})
    assert saver.restore()[1].update == 3


def test_a_failure_on_one_rank_fails_the_save_on_all_and_names_the_rank(tmp_path: Path) -> None:
    run_ranks(2, _one_rank_fails, str(tmp_path))


def _damaged_for_one_rank(rank: int, folder: str) -> None:
    saver = checkpointer(folder)
    saver.save(State(SHARED, local(rank)), {"updates": 1})
    commit = saver.save(State(SHARED, local(rank) | {"more": 1}), {"updates": 2})
    dist.barrier()
    if rank == 0:
        Path(folder, commit.parts[1].name).write_text("rotten")
    dist.barrier()
    state, restored = saver.restore()
    assert restored.update == 1
    assert same(state.local, local(rank))
    assert len(saver.damaged) == 1
    assert "update 2" in saver.damaged[0]


def test_a_snapshot_damaged_for_one_rank_is_used_by_none(tmp_path: Path) -> None:
    run_ranks(2, _damaged_for_one_rank, str(tmp_path))
