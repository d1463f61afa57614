from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.comm import AllReduce, CommError, attach
from gradwire.comm.postscript import SIZE, Postscript


@given(
    numbers=st.lists(st.lists(st.integers(0, 2**54), min_size=3, max_size=3), min_size=2, max_size=256),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_sums_over_all_ranks_are_exact(numbers: list[list[int]], dtype: torch.dtype) -> None:
    total = torch.zeros(SIZE, dtype=dtype)
    for own in numbers:
        tail = torch.empty(SIZE, dtype=dtype)
        Postscript(tail, len(numbers)).write(True, own)
        total += tail
    assert Postscript(total, len(numbers)).read(3) == [sum(column) for column in zip(*numbers, strict=True)]


def test_a_rank_that_lacks_a_gradient_is_noticed() -> None:
    total = torch.zeros(SIZE)
    for complete in (True, False, True):
        tail = torch.empty(SIZE)
        Postscript(tail, 3).write(complete, [5])
        total += tail
    assert Postscript(total, 3).read(1) is None


@pytest.mark.parametrize(
    ("dtype", "ranks"), [(torch.bfloat16, 2), (torch.float16, 2), (torch.float32, 257), (torch.float32, 1)]
)
def test_where_sums_would_not_be_exact_there_is_none(dtype: torch.dtype, ranks: int) -> None:
    assert not Postscript.fits(dtype, torch.device("cpu"), ranks)


class Halves(torch.nn.Module):
    """Two layers, of which a pass uses both or the first."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3, dtype=dtype), torch.nn.Linear(3, 3, dtype=dtype)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        x = self.first(x)
        return self.second(x) if both else x


def _counts(rank: int, dtype: torch.dtype) -> None:
    model = Halves(dtype)
    reducer = attach(model, AllReduce(), op="sum")
    assert bool(reducer.buckets[-1].tail.numel()) == (dtype == torch.float32)
    for both in (True, rank == 0, True, False):  # with all gradients, with some, with none of the second layer
        model.zero_grad()
        reducer.carry([1_000_000 + rank, 2**40, rank])
        model(torch.ones(2, 3, dtype=dtype), both).sum().backward()
        assert reducer.carried == [2_000_001, 2**41, 1]
        assert model.first.weight.grad is not None
    for bad in ([1, 2, 3, 4, 5], [-1], [2**63]):
        with pytest.raises(CommError, match="at most 4 whole numbers from 0 on"):
            reducer.carry(bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_counts_are_carried_whoever_has_which_gradient(ranks: Callable[..., None], dtype: torch.dtype) -> None:
    ranks(2, _counts, dtype)
