"""PowerSGD as the compression of an axis."""

import pytest
import torch
from torch import nn

from gradwire.comm import AllReduce, CommError, PowerSGD, Topology, attach
from gradwire.comm.factors import Rows
from tests.comm.models import assert_same_bits_everywhere

LINE, HOSTS = Topology(node=4), Topology(local=2, node=2)
TOPOLOGIES = {"line": LINE, "hosts": HOSTS}


def test_rows_within_a_range_are_the_whole_ones():
    rows = Rows("a", 0, 10, 5, 4)  # elements 10 to 30
    assert rows.within(0, 100) == rows
    assert rows.within(11, 29) == Rows("a", 1, 3, 3, 4)
    assert rows.within(14, 22) == Rows("a", 1, 0, 2, 4)
    assert rows.within(11, 17) is None
    assert rows.within(30, 90) is None


def _tensors(rank):
    generator = torch.Generator().manual_seed(7)
    left, right = torch.randn(60, 2, generator=generator), torch.randn(2, 5, 10, generator=generator)
    matrix = torch.tensordot(left * (rank + 1), right, dims=1)  # the sum over ranks has rank 2, too
    all_reduce = AllReduce(LINE, codecs={"node": PowerSGD(2)}, segment_mb=0.001)
    for op, factor in (("sum", 10.0), ("mean", 2.5)):
        tensor = matrix.clone()
        all_reduce(tensor, op)
        torch.testing.assert_close(tensor, torch.tensordot(left * factor, right, dims=1), rtol=1e-3, atol=1e-3)
    traffic = all_reduce.take_traffic()["node"]
    assert traffic.sent == 2 * (4 * 2 * (60 + 50)) * 3 // 2
    assert traffic.error < 1e-3
    vector, half = torch.arange(100.0) + rank, torch.full((40, 40), rank + 1.0, dtype=torch.bfloat16)
    all_reduce(vector, "sum")
    assert torch.equal(vector, 4 * torch.arange(100.0) + 6)
    all_reduce(half, "sum")
    torch.testing.assert_close(half, torch.full_like(half, 10.0))


def test_a_tensor_is_a_matrix_and_a_vector_goes_as_it_is(ranks):
    ranks(4, _tensors)


def _refused(_):
    for topology, codecs, options in (
        (HOSTS, {"local": "power_sgd"}, {}),
        (HOSTS, {"local": PowerSGD(), "node": PowerSGD()}, {}),
        (HOSTS, {"node": "power_sgd"}, {"rotate": True}),
        (HOSTS, {"node": "power_sgd"}, {"algorithm": "auto"}),
    ):
        with pytest.raises(CommError, match=r"belongs on the last axis \(node\)"):
            AllReduce(topology, codecs=codecs, **options)
    AllReduce(Topology(local=4, node=1), codecs={"local": "power_sgd"})
    with pytest.raises(CommError, match="Did you mean 'power_sgd'"):
        AllReduce(LINE, codecs={"node": "powersgd"})


def test_other_places_are_refused(ranks):
    ranks(4, _refused)


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, 8))


def _attached(topology, codecs=None):
    model = _model()
    codecs = codecs or {"node": PowerSGD(1, min_compression=1.2)}
    return model, attach(model, AllReduce(topology, codecs=codecs), op="sum", bucket_mb=0.005)


def _backward(model, rank, step, poison=False):
    model.zero_grad()
    inputs = torch.randn(6, 24, generator=torch.Generator().manual_seed(1000 * rank + step))
    loss = model(inputs).square().sum()
    (loss * float("nan") if poison else loss).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def _residual_sums(states):
    total = {}
    for state in states:
        for parts in state["residuals"].values():
            for name, saved in parts.items():
                flat = total.setdefault(name, torch.zeros(4096, dtype=torch.float64))
                values = saved["values"].split([stop - start for start, stop in saved["spans"]])
                for (start, stop), value in zip(saved["spans"], values, strict=True):
                    flat[start:stop] += value.double()
    return total


def _gathered(state, size):
    states = [None] * size
    torch.distributed.all_gather_object(states, state)
    return states


def _nothing_is_lost(rank, topology, codecs):
    model, reducer = _attached(topology, codecs)
    given, owed = {}, {}
    for step in range(4):
        for name, gradient in _backward(model, rank, step).items():
            given[name] = given.get(name, 0) + gradient.double()
        for peer in range(4):
            for name, gradient in _backward(_model(), peer, step).items():
                owed[name] = owed.get(name, 0) + gradient.double()
        assert_same_bits_everywhere(model)
    residuals = _residual_sums(_gathered(reducer.state_dict(), 4))
    for name, total in given.items():
        rest = residuals[name][: total.numel()].view(total.shape)
        torch.testing.assert_close(total + rest, owed[name], rtol=1e-4, atol=1e-4)
    assert residuals["2.weight"].abs().max() > 0


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_what_was_given_and_the_residuals_make_up_the_gradients(ranks, topology):
    ranks(4, _nothing_is_lost, TOPOLOGIES[topology], None)


def test_another_axis_may_have_a_codec_with_feedback_of_its_own(ranks):
    ranks(4, _nothing_is_lost, HOSTS, {"local": "int4", "node": PowerSGD(1, min_compression=1.2)})


@pytest.mark.parametrize("warm", [True, False])
def test_a_resumed_reducer_gives_the_same_bits(ranks, warm):
    ranks(4, _resumes, {"node": PowerSGD(2, min_compression=1.2, warm_start=warm)})


def _resumes(rank, codecs):
    model, reducer = _attached(HOSTS, codecs)
    for step in range(3):
        _backward(model, rank, step)
    state = reducer.state_dict()
    assert bool(state["factors"]["node"]["factors"]) == codecs["node"].warm_start
    expected = [_backward(model, rank, step) for step in range(3, 6)]
    again, reducer = _attached(HOSTS, codecs)
    reducer.load_state_dict(state)
    for step, gradients in enumerate(expected, 3):
        for name, gradient in _backward(again, rank, step).items():
            assert torch.equal(gradient, gradients[name]), name


def _state(rank, path):
    model, reducer = _attached(HOSTS)
    for step in range(2):
        _backward(model, rank, step)
    torch.save(reducer.state_dict(), path / str(rank))


def _moved(rank, path):
    before = [torch.load(path / str(old)) for old in range(4)]
    model, reducer = _attached(Topology(node=2))
    reducer.load_state_dicts(before)
    after = _residual_sums(_gathered(reducer.state_dict(), 2))
    for name, total in _residual_sums(before).items():
        torch.testing.assert_close(after[name], total, rtol=1e-5, atol=1e-6)
    _backward(model, rank, 2)
    assert_same_bits_everywhere(model)


def test_on_other_ranks_the_sum_of_the_residuals_stays(ranks, tmp_path):
    ranks(4, _state, tmp_path)
    ranks(2, _moved, tmp_path)


def _poisoned(rank, told):
    (model, reducer), (clean, _) = _attached(HOSTS), _attached(HOSTS)
    for each in (model, clean):
        _backward(each, rank, 0)
    gradients = _backward(model, rank, 1, poison=rank == 2)
    assert gradients["2.weight"].isnan().any()
    if told:
        reducer.settle(kept=False)
    expected = _backward(clean, rank, 2)
    for name, gradient in _backward(model, rank, 2).items():
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.parametrize("told", [True, False])
def test_a_gradient_with_nan_leaves_residuals_and_factors_as_they_were(ranks, told):
    ranks(4, _poisoned, told)


def _doubled(rank):
    (model, reducer), (plain, _) = _attached(LINE), _attached(LINE)
    for each in (model, plain):
        _backward(each, rank, 0)
    reducer.rescale(4.0)
    model.zero_grad()
    inputs = torch.randn(6, 24, generator=torch.Generator().manual_seed(1000 * rank + 1))
    (4.0 * model(inputs).square().sum()).backward()
    for (name, parameter), gradient in zip(model.named_parameters(), _backward(plain, rank, 1).values(), strict=True):
        torch.testing.assert_close(parameter.grad, 4.0 * gradient, rtol=1e-6, atol=0, msg=name)


def test_residuals_follow_the_loss_scale_and_factors_need_not(ranks):
    ranks(4, _doubled)
