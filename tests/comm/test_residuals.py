"""Error feedback of an attached module: what a codec lost is given later, on any topology, resumed or resized."""

import pytest
import torch
from torch import nn

from gradwire.comm import AllReduce, CommError, Topology, attach
from tests.comm.models import assert_same_bits_everywhere

SMALL = 0.002
TOPOLOGIES = {"ring": Topology(ring=4), "hierarchical": Topology(local=2, node=2)}


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 24), nn.Tanh(), nn.Linear(24, 8))


def _attached(topology, codec, **options):
    model = _model()
    codecs = codec if isinstance(codec, dict) else {list(topology.axes)[-1]: codec}
    all_reduce = AllReduce(topology, codecs=codecs, segment_mb=SMALL, **options)
    return model, attach(model, all_reduce, op="sum", bucket_mb=SMALL)


def _backward(model, rank, step, poison=False):
    model.zero_grad()
    inputs = torch.randn(6, 24, generator=torch.Generator().manual_seed(1000 * rank + step))
    loss = model(inputs).square().sum()
    (loss * float("nan") if poison else loss).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def _exact(rank_count, step):
    """The sum of the ranks' gradients, in float64."""
    total = {}
    for rank in range(rank_count):
        for name, gradient in _backward(_model(), rank, step).items():
            total[name] = total.get(name, 0) + gradient.double()
    return total


def _residual_sum(states):
    """By parameter, the sum over ranks and axes of the residuals, [padded numel] float64."""
    total = {}
    for state in states:
        for parts in state["residuals"].values():
            for name, saved in parts.items():
                flat = total.setdefault(name, torch.zeros(4096, dtype=torch.float64))
                done = 0
                for start, stop in saved["spans"]:
                    flat[start:stop] += saved["values"][done : done + stop - start].double()
                    done += stop - start
    return total


def _gathered(state, size):
    states = [None] * size
    torch.distributed.all_gather_object(states, state)
    return states


def _nothing_is_lost(rank, topology, codec, rotate=False):
    model, reducer = _attached(topology, codec, rotate=rotate)
    given, owed = {}, {}
    for step in range(4):
        for name, gradient in _backward(model, rank, step).items():
            given[name] = given.get(name, 0) + gradient.double()
        for name, gradient in _exact(4, step).items():
            owed[name] = owed.get(name, 0) + gradient
        assert_same_bits_everywhere(model)
    residuals = _residual_sum(_gathered(reducer.state_dict(), 4))
    for name, total in given.items():
        rest = residuals[name][: total.numel()].view(total.shape)
        torch.testing.assert_close(total + rest, owed[name], rtol=1e-4, atol=1e-4)
        assert rest.abs().max() > 0


@pytest.mark.parametrize("codec", ["int4", "sign", "top_k"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_what_was_given_and_the_residuals_make_up_the_gradients(ranks, topology, codec):
    ranks(4, _nothing_is_lost, TOPOLOGIES[topology], codec)


@pytest.mark.parametrize("rotate", [False, True])
def test_nothing_is_lost_where_inner_axes_are_coded(ranks, rotate):
    ranks(4, _nothing_is_lost, TOPOLOGIES["hierarchical"], {"local": "int4", "node": "sign"}, rotate)


def _resumes(rank, codec):
    model, reducer = _attached(TOPOLOGIES["hierarchical"], codec)
    for step in range(3):
        _backward(model, rank, step)
    state = reducer.state_dict()
    expected = [_backward(model, rank, step) for step in range(3, 6)]
    reducer.detach()
    again, reducer = _attached(TOPOLOGIES["hierarchical"], codec)
    reducer.load_state_dict(state)
    for step, gradients in enumerate(expected, 3):
        for name, gradient in _backward(again, rank, step).items():
            assert torch.equal(gradient, gradients[name])


@pytest.mark.parametrize("codec", ["int4", "top_k", "random_k"])
def test_a_resumed_reducer_gives_the_same_bits(ranks, codec):
    ranks(4, _resumes, codec)


def _moves(rank, states):
    model, reducer = _attached(Topology(node=2), "int4")
    reducer.load_state_dicts(states)
    before = _residual_sum(states)
    after = _residual_sum(_gathered(reducer.state_dict(), 2))
    for name, total in before.items():
        torch.testing.assert_close(after[name], total, rtol=1e-5, atol=1e-6)
    _backward(model, rank, 0)


def _states(rank, path):
    model, reducer = _attached(TOPOLOGIES["hierarchical"], "int4")
    for step in range(2):
        _backward(model, rank, step)
    states = _gathered(reducer.state_dict(), 4)
    if rank == 0:
        torch.save(states, path)


def test_on_other_ranks_the_sum_of_the_residuals_stays(ranks, tmp_path):
    ranks(4, _states, tmp_path / "states")
    ranks(2, _moves, torch.load(tmp_path / "states"))


def _poisoned(rank, told):
    models = [_attached(TOPOLOGIES["hierarchical"], "int4") for _ in range(2)]
    for model, _ in models:
        _backward(model, rank, 0)
    model, reducer = models[0]
    gradients = _backward(model, rank, 1, poison=rank == 2)
    assert any(gradient.isnan().any() for gradient in gradients.values())
    if told:
        reducer.settle(kept=False)
    for (name, gradient), other in zip(
        _backward(model, rank, 2).items(), _backward(models[1][0], rank, 2).values(), strict=True
    ):
        assert torch.equal(gradient, other), name


@pytest.mark.parametrize("told", [True, False])
def test_a_gradient_with_nan_is_seen_by_every_rank_and_leaves_the_residuals_as_they_were(ranks, told):
    ranks(4, _poisoned, told)


def _rescaled(rank):
    model, reducer = _attached(TOPOLOGIES["hierarchical"], "int4")
    _backward(model, rank, 0)
    before = _residual_sum([reducer.state_dict()])
    reducer.rescale(0.5)
    for name, total in _residual_sum([reducer.state_dict()]).items():
        assert torch.equal(total, before[name] * 0.5)


def test_residuals_follow_the_loss_scale(ranks):
    ranks(2 * 2, _rescaled)


def _refused(rank):
    _, reducer = _attached(TOPOLOGIES["hierarchical"], "int4")
    state = reducer.state_dict()
    _, other = _attached(Topology(ring=4), "int4")
    with pytest.raises(CommError, match="load_state_dicts"):
        other.load_state_dict(state)


def test_residuals_of_another_topology_are_refused(ranks):
    ranks(4, _refused)


def _given_once(rank, codec):
    model, reducer = _attached(TOPOLOGIES["hierarchical"], "int4")
    _backward(model, rank, 0)
    states = _gathered(reducer.state_dict(), 4)
    lost = _residual_sum(states)
    reducer.detach()
    without = Topology(ring=4)
    plain, other = _attached(without, codec), _attached(without, codec)
    other[1].load_state_dicts(states)
    again = _attached(without, codec)
    again[1].load_state_dict(other[1].state_dict())
    for kept in (False, True, True):
        expected = _backward(plain[0], rank, 1)
        for name, gradient in _backward(other[0], rank, 1).items():
            arrears = lost[name][: gradient.numel()].view(gradient.shape)
            torch.testing.assert_close(gradient.double(), expected[name] + arrears, rtol=0.02, atol=0.1)
        other[1].settle(kept)
        if kept:
            lost = {name: torch.zeros_like(total) for name, total in lost.items()}
    assert _gradients_equal(_backward(again[0], rank, 1), _backward(_second(states, without, codec), rank, 1))


def _second(states, topology, codec):
    model, reducer = _attached(topology, codec)
    reducer.load_state_dicts(states)
    return model


def _gradients_equal(some, others):
    return all(torch.equal(gradient, others[name]) for name, gradient in some.items())


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_where_no_axis_can_carry_them_residuals_are_given_once_with_the_next_gradient_that_is_kept(ranks, codec):
    ranks(4, _given_once, codec)
