"""Several tiers, by several real processes under gloo."""

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from gradwire.checkpoint import Checkpointer, CheckpointWriteError, Policy, State, StoreError, StoreUnavailable
from gradwire.checkpoint.blobs import Blob
from gradwire.checkpoint.store import Store
from tests.checkpoint.states import same, same_state, state_at
from tests.ranks import run_ranks


def state(rank: int, update: int) -> State:
    return State(state_at(update).shared, {"residual": torch.full((50,), float(rank + update)), "rank": rank})


def tiered(folder: str, **settings: Any) -> Checkpointer:
    return Checkpointer(f"{folder}/far", tiers=[f"{folder}/near"], group=dist.group.WORLD, **settings)


def far_gone(folder: str) -> Any:
    """Only the first rank copies, and only copies fail."""
    put = Store.put_content

    def fail(self: Store, *arguments: Any) -> bool:
        if self.url == f"{folder}/far":
            raise StoreUnavailable("the bucket is gone")
        return put(self, *arguments)

    return mock.patch.object(Store, "put_content", fail)


def _agree(rank: int, folder: str) -> None:
    saver = tiered(folder, policy=Policy("warn", failures=1))
    commit = saver.save(state(rank, 1), {"updates": 1})
    assert commit == saver.durable == Checkpointer(f"{folder}/far").latest()
    with saver.journal(commit, 1, "update") as journal, far_gone(folder):
        for update in (2, 3):
            journal.append(update, {}, {"gradient": Blob(torch.full((4,), float(rank)))})
            journal.wait(update)
            saver.start(state(rank, update), {"updates": update}).wait()
            saver._mirror._settle()
            assert saver.standing.failed == update - 2
        with pytest.raises(CheckpointWriteError, match=r"update 3 is saved in .*near.*the bucket is gone"):
            saver.start(state(rank, 4), {"updates": 4})
    resumed = tiered(folder)
    restored, commit = resumed.restore()
    assert commit.update == 3
    assert same_state(restored, state(rank, 3))
    assert resumed.recovery(commit).last == 3
    resumed.take_over(restored)
    with resumed.journal(commit, 3, "update") as journal:
        journal.append(4, {}, {"gradient": Blob(torch.full((4,), float(rank)))})
        journal.wait(4)
    resumed.close()
    assert resumed.durable is not None
    assert resumed.durable.update == 3
    for name in ("near", "elsewhere"):
        again = Checkpointer(f"{folder}/far", tiers=[f"{folder}/{name}"], group=dist.group.WORLD)
        restored, commit = again.restore()
        assert same(restored.local, state(rank, 3).local)
        assert [update for update, entries in again.recovery(commit).entries() if len(entries) == 2] == [4]


def test_all_ranks_know_what_was_copied_and_what_was_not(tmp_path: Any) -> None:
    run_ranks(2, _agree, str(tmp_path))


def _see_other_places(rank: int, folder: str) -> None:
    here = Checkpointer(f"{folder}/far", tiers=[f"{folder}/{rank}/near"], group=dist.group.WORLD)
    with pytest.raises(StoreError, match=r"near on .* does not show commits/0+1.*name a folder that all hosts mount"):
        here.take_over(state(rank, 1))
    alone = Checkpointer(f"{folder}/{rank}/only", group=dist.group.WORLD)
    with pytest.raises(CheckpointWriteError, match="is another place on each host"):
        alone.save(state(rank, 1), {"updates": 1})


def _see_other_places_at_once(rank: int, folder: str) -> None:
    with mock.patch("gradwire.checkpoint.tiers._PATIENCE", 0.3):
        _see_other_places(rank, folder)


def test_a_tier_that_is_not_one_place_for_all_ranks_is_refused(tmp_path: Any) -> None:
    run_ranks(2, _see_other_places_at_once, str(tmp_path))
