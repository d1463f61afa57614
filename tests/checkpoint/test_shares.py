from pathlib import Path

import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from gradwire.checkpoint import Checkpointer, State, load_weights
from gradwire.checkpoint.ranks import Ranks
from gradwire.checkpoint.shares import deal, share_out
from gradwire.checkpoint.snapshot import read_part
from gradwire.checkpoint.store import Store
from tests.checkpoint.states import same
from tests.ranks import run_ranks


@given(st.lists(st.integers(0, 1000)), st.integers(1, 9))
def test_no_rank_has_more_than_four_thirds_of_the_best(sizes: list[int], ranks: int) -> None:
    owners = deal(sizes, ranks)
    assert len(owners) == len(sizes)
    loads = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(ranks)]
    descending = sorted(sizes, reverse=True)
    pair = sum(descending[ranks - 1 : ranks + 1]) if len(sizes) > ranks else 0
    best = max([sum(sizes) / ranks, pair, *descending[:1]])
    assert max(loads) <= 4 / 3 * best + 1


def test_the_deal_depends_on_sizes_alone() -> None:
    assert deal([5, 9, 5, 1], 2) == [1, 0, 1, 0]
    assert deal([5, 9, 5, 1], 2) == deal([5, 9, 5, 1], 2)
    assert deal([3, 2], 1) == [0, 0]


def shared(rank: int, *, statistics: bool = False) -> dict[str, object]:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(1000 * (index + 1), generator=generator) for index in range(4)]
    mean = torch.full((2000,), float(rank if statistics else 0))
    return {"model": {"w": weights, "tied": weights[3], "equal": weights[3].clone(), "mean": mean}, "lr": 0.1}


def _written_once(rank: int, folder: str) -> None:
    checkpointer = Checkpointer(folder, group=dist.group.WORLD)
    commit = checkpointer.save(State(shared(rank)), {"updates": 1})
    parts = [read_part(Store.open(folder), ref) for ref in commit.parts]
    assert sorted(number for part in parts for number in part.shared_tensors) == list(range(7))
    assert all(part.shared_tensors for part in parts)
    owners = share_out(Ranks(dist.group.WORLD), shared(rank))
    assert owners is not None
    assert owners[3] == owners[4] == owners[5], "tied and equal tensors cost once"
    sizes = [sum(pack.size for pack in part.packs) for part in parts]
    assert sum(sizes) < 4 * (1000 + 2000 + 3000 + 4000 + 2000)
    assert same(checkpointer.restore()[0].shared, shared(0))


def test_ranks_share_the_writing_and_write_nothing_twice(tmp_path: Path) -> None:
    run_ranks(2, _written_once, str(tmp_path))
    assert same(load_weights(tmp_path)[0], _named(shared(0)))
    state, _ = Checkpointer(tmp_path).restore()
    assert same(state.shared, shared(0))


def _named(state: dict[str, object]) -> dict[str, object]:
    model = state["model"]
    assert isinstance(model, dict)
    return {name: value for name, value in model.items() if isinstance(value, torch.Tensor)}


def _differing(rank: int, folder: str) -> None:
    checkpointer = Checkpointer(folder, group=dist.group.WORLD)
    state = shared(rank, statistics=True)
    owners = share_out(Ranks(dist.group.WORLD), state)
    assert owners is not None
    assert owners[6] == 0
    assert set(owners[:6]) == {0, 1}
    checkpointer.save(State(state), {"updates": 1})
    assert same(checkpointer.restore()[0].shared, shared(0, statistics=True))
    odd = shared(0) if rank == 0 else {"model": {"w": torch.ones(3)}}
    assert share_out(Ranks(dist.group.WORLD), odd) is None
    checkpointer.save(State(odd), {"updates": 2})
    assert same(checkpointer.restore()[0].shared, shared(0))


def test_what_differs_between_ranks_is_taken_from_the_first(tmp_path: Path) -> None:
    run_ranks(2, _differing, str(tmp_path))


def _equal_on_the_first_alone(rank: int, folder: str) -> None:
    """As the statistics of a model (everybody's, once synchronized) and those of its average (each rank's own)."""
    checkpointer = Checkpointer(folder, group=dist.group.WORLD)
    pairs = {
        f"{name}{index}": torch.full((500,), float(index + (rank if name == "average" else 0)))
        for index in range(4)
        for name in ("model", "average")
    }
    shifted = {"first": torch.arange(500.0), **pairs}  # so that the second rank is to write the model's
    checkpointer.save(State(shifted), {"updates": 1})
    saved = checkpointer.restore()[0].shared
    assert all(saved[name][0] == int(name[-1]) for name in pairs), {name: saved[name][0] for name in pairs}


def test_what_is_equal_on_the_first_rank_alone_is_not_taken_from_another(tmp_path: Path) -> None:
    run_ranks(2, _equal_on_the_first_alone, str(tmp_path))
