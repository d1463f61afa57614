import pytest
import torch
import torch.distributed as dist

from gradwire.comm import AllReduce, CommError, attach, compressions
from tests.comm.models import assert_close, data, gradients, local_gradients, mlp


def _values(rank):
    all_reduce = AllReduce()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        tensor = (torch.arange(7) + rank).to(dtype)
        assert all_reduce(tensor, op="sum") is None
        assert torch.equal(tensor, (3 * torch.arange(7) + 3).to(dtype))
    tensor = torch.arange(7.0) + rank
    all_reduce(tensor)
    assert torch.equal(tensor, torch.arange(7.0) + 1)


def test_sum_and_mean_of_representable_values_are_exact_at_three_ranks(ranks):
    ranks(3, _values)


def _later(rank):
    tensor = torch.full((1000,), float(rank))
    work = AllReduce()(tensor, op="mean", async_op=True)
    work.wait()
    assert torch.equal(tensor, torch.full((1000,), 0.5))


def test_async_work_is_done_after_wait(ranks):
    ranks(2, _later)


def _shapes(rank):
    whole = torch.zeros(4, 6)
    part = whole[:, 1:4]
    part += rank + 1.0
    AllReduce()(part, op="sum")
    assert torch.equal(part, torch.full((4, 3), 3.0)) and whole.sum() == 36
    AllReduce()(torch.empty(0), op="sum")
    scalar = torch.tensor(float(rank))
    AllReduce()(scalar)
    assert scalar.item() == 0.5


def test_any_shape_and_layout(ranks):
    ranks(2, _shapes)


def _refused(rank):
    with pytest.raises(CommError, match="op is 'max'"):
        AllReduce()(torch.ones(2), op="max")
    with pytest.raises(CommError, match=r"mean of torch\.int64"):
        AllReduce()(torch.ones(2, dtype=torch.int64))


def test_unknown_ops_and_means_of_integers_are_refused(ranks):
    ranks(2, _refused)


def test_unknown_algorithms_are_refused():
    with pytest.raises(CommError, match="algorithm is 'magic'"):
        AllReduce(algorithm="magic")


def test_a_process_alone_keeps_its_tensor():
    tensor = torch.arange(3.0)
    assert AllReduce()(tensor) is None
    AllReduce()(tensor, op="sum", async_op=True).wait()
    assert torch.equal(tensor, torch.arange(3.0))


def _within_a_group(rank):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = mlp()
    local = local_gradients(model, data(rank))
    attach(model, AllReduce(group=pairs[rank // 2]), op="sum")
    model(data(rank)).square().mean().backward()
    for value in local.values():
        dist.all_reduce(value, group=pairs[rank // 2])
    assert_close(gradients(model), local)


def test_only_the_groups_ranks_take_part(own_ranks):
    own_ranks(4, _within_a_group)


@pytest.mark.parametrize(
    ("codec", "size"), [(None, 4.0), ("int8", 4.0), ("int4", 8.0), ("sign", 16.0), ("top_k", 16.0)]
)
def test_segments_are_larger_where_less_of_them_travels(codec, size):
    assert compressions.segment_mb({} if codec is None else {"node": compressions.named(codec)}) == size
