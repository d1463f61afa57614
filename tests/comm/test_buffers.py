import torch
from torch import nn

from gradwire.comm import AllReduce, attach


def _network(rank):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    return model, torch.randn(8, 4, generator=torch.Generator().manual_seed(rank)) + rank


def _statistics(model):
    return torch.cat([buffer.double().flatten() for buffer in model.buffers()])


def _from_everyone(model):
    gathered = [torch.empty_like(_statistics(model)) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(gathered, _statistics(model))
    return gathered


def _follow_first(rank):
    model, inputs = _network(rank)
    attach(model, AllReduce())
    model(inputs)
    own = _statistics(model)
    first, second = _from_everyone(model)
    assert not torch.equal(first, second)  # each rank's own batch
    seen = []
    model[0].register_forward_pre_hook(lambda *_: seen.append(_statistics(model)))
    model(inputs)
    assert torch.equal(seen[0], first)
    assert rank == 0 or not torch.equal(own, first)
    assert model[1].num_batches_tracked.item() == 2


def test_buffers_are_the_first_ranks_before_every_training_forward(ranks):
    ranks(2, _follow_first)


def _left_alone(rank, mode):
    model, inputs = _network(rank)
    reducer = attach(model, AllReduce(), broadcast_buffers=mode != "off")
    model(inputs)
    own = _statistics(model)
    seen = []
    model[0].register_forward_pre_hook(lambda *_: seen.append(_statistics(model)))
    if mode == "eval":
        model.eval()(inputs)
    elif mode == "no_grad":
        with torch.no_grad():
            model(inputs)
    elif mode == "no_sync":
        with reducer.no_sync():
            model(inputs)
    else:
        model(inputs)
    assert torch.equal(seen[0], own)


def test_buffers_stay_in_evaluation_under_no_sync_and_when_asked(ranks):
    for mode in ("eval", "no_grad", "no_sync", "off"):
        ranks(2, _left_alone, mode)


def _two_forwards(rank):
    model, inputs = _network(rank)
    attach(model, AllReduce())
    (model(inputs).square().mean() + model(inputs + 1).square().mean()).backward()
    assert model[0].weight.grad is not None


def test_two_forwards_before_one_backward(ranks):
    ranks(2, _two_forwards)


def _reassigned(rank):
    model, inputs = _network(rank)
    attach(model, AllReduce())
    model(inputs)
    model[1].running_mean = torch.full((4,), float(rank), dtype=torch.float64).float()
    model.register_buffer("unrelated", torch.ones(3))
    seen = []
    model[0].register_forward_pre_hook(lambda *_: seen.append(model[1].running_mean.clone()))
    model(inputs)
    assert torch.equal(seen[0], torch.zeros(4))


def test_a_buffer_assigned_anew_is_followed(ranks):
    ranks(2, _reassigned)
