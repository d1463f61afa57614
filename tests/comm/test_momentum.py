"""Deep gradient compression: momentum correction and warm-up of sparsity, alone and on an axis."""

import pytest
import torch
from torch import nn

from gradwire.comm import AllReduce, CommError, Topology, attach
from gradwire.comm.codecs import TopK
from gradwire.comm.errors import CodecError
from gradwire.comm.momentum import DeepGradientCompression
from tests.comm.models import assert_same_bits_everywhere


@pytest.mark.parametrize("nesterov", [False, True])
def test_follows_the_paper(nesterov):
    torch.manual_seed(0)
    dgc = DeepGradientCompression(0.05, momentum=0.9, nesterov=nesterov, threshold="exact")
    velocity, accumulated, pending = torch.zeros(1000), torch.zeros(1000), torch.zeros(1000)
    u, v = torch.zeros(1000), torch.zeros(1000)
    payload, out = torch.empty(dgc.nbytes(1000), dtype=torch.uint8), torch.empty(1000)
    for _ in range(10):
        gradient = torch.randn(1000)
        values = gradient.clone()
        dgc.accumulate(values, accumulated, velocity, pending)
        dgc.encode(values, payload, error=accumulated)
        dgc.clear_sent(dgc.at(0), payload, pending)
        velocity, pending = pending, velocity
        u = 0.9 * u + gradient
        v = v + (gradient + 0.9 * u if nesterov else u)
        sent = v.abs().topk(50).indices
        dgc.decode(payload, out)
        assert torch.equal(out.nonzero()[:, 0], sent.sort().values)
        u[sent] = 0
        v[sent] -= out[sent]
        torch.testing.assert_close(velocity, u)
        torch.testing.assert_close(accumulated, v, atol=1e-5, rtol=1e-5)


def test_warm_up_gives_the_ratios_of_the_paper():
    warm = DeepGradientCompression(0.001, warmup=400, start=0.25, threshold="exact")
    ratios = [warm.ratio_at(update) for update in (0, 99, 100, 200, 300, 399, 400, 10_000)]
    assert ratios == pytest.approx([0.25, 0.25, 0.0629, 0.0158, 0.00398, 0.00398, 0.001, 0.001], rel=2e-2)
    assert warm.at(150) == TopK(warm.ratio_at(150), threshold="exact")
    assert DeepGradientCompression(0.5).at(0) == TopK(0.5)


@pytest.mark.parametrize(
    "mistake",
    [{"momentum": 1.0}, {"ratio": 0.5, "warmup": 10}, {"warmup": -1}, {"warmup": 1, "stages": 0}, {"ratio": 0.0}],
)
def test_what_cannot_be_is_refused(mistake):
    with pytest.raises(CodecError):
        DeepGradientCompression(**mistake)


LINE, HOSTS = Topology(node=4), Topology(local=2, node=2)


def _attached(topology, codec, width=64):
    torch.manual_seed(0)
    model = nn.Linear(width, width, bias=False)
    return model, attach(model, AllReduce(topology, codecs={"node": codec}), bucket_mb=0.002)


def _inputs(rank, step, width=64):
    return torch.randn(16, width, generator=torch.Generator().manual_seed(1000 * rank + step))


def _backward(model, rank, step):
    model.zero_grad()
    inputs = _inputs(rank, step, model.in_features)
    (model(inputs) - inputs.flip(1)).square().mean().backward()
    return model.weight.grad.clone()


def _everything_sent(rank):
    """With a ratio of 1 nothing is late: no momentum is left, and the gradients are the mean."""
    model, reducer = _attached(LINE, DeepGradientCompression(1.0))
    plain, _ = _attached(LINE, "none")
    for step in range(3):
        expected = _backward(plain, rank, step)
        torch.testing.assert_close(_backward(model, rank, step), expected, rtol=0.02, atol=1e-4)
    saved = reducer.state_dict()["residuals"]["node"]["weight"]
    assert not saved["velocity"].any()


def test_with_everything_sent_the_gradient_is_the_mean(ranks):
    ranks(4, _everything_sent)


def _share_sent(rank):
    model, reducer = _attached(LINE, DeepGradientCompression(0.01, warmup=8))
    sent = []
    for step in range(10):
        _backward(model, rank, step)
        sent.append(reducer.take_traffic()["node"].sent)
    assert sent[0] == sent[1] > sent[2] == sent[3] > sent[4] > sent[6] == sent[7] > sent[8] == sent[9]
    assert sent[0] > 10 * sent[9]


def test_the_ratio_falls_with_the_reductions(ranks):
    ranks(4, _share_sent)


def _distance_after_training(codec, momentum, rank):
    model, reducer = _attached(Topology(node=2), codec, width=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.6, momentum=momentum)
    for step in range(100):
        _backward(model, rank, step)
        optimizer.step()
    reducer.detach()
    assert_same_bits_everywhere(model)
    return float((model.weight.detach() - torch.eye(32).flip(0)).norm())


def _converges(rank):
    corrected = _distance_after_training(DeepGradientCompression(0.1, warmup=40), 0.0, rank)
    plain = _distance_after_training(TopK(0.1), 0.9, rank)
    assert corrected < 0.05  # begins at 6.5
    assert corrected < 0.2 * plain


def test_it_converges_where_top_k_under_a_momentum_optimizer_does_worse(ranks):
    ranks(2, _converges)


def _resumes(rank):
    dgc = DeepGradientCompression(0.05, warmup=6, nesterov=True)
    model, reducer = _attached(HOSTS, dgc)
    for step in range(3):
        _backward(model, rank, step)
    state = reducer.state_dict()
    expected = [_backward(model, rank, step) for step in range(3, 8)]
    again, reducer = _attached(HOSTS, dgc)
    reducer.load_state_dict(state)
    for step, gradient in enumerate(expected, 3):
        assert torch.equal(_backward(again, rank, step), gradient)
    _, other = _attached(HOSTS, "top_k")
    with pytest.raises(CommError, match="another codec"):
        other.load_state_dict(state)


def test_a_resumed_reducer_gives_the_same_bits(ranks):
    ranks(4, _resumes)


def _state(rank, path):
    model, reducer = _attached(HOSTS, DeepGradientCompression(0.05))
    for step in range(3):
        _backward(model, rank, step)
    reducer.rescale(0.5)
    reducer.rescale(2.0)
    torch.save(reducer.state_dict(), path / str(rank))


def _sums(states):
    found = {kind: torch.zeros(64 * 64, dtype=torch.float64) for kind in ("values", "velocity")}
    for saved in (state["residuals"]["node"]["weight"] for state in states):
        for kind, total in found.items():
            values = saved[kind].split([stop - start for start, stop in saved["spans"]])
            for (start, stop), value in zip(saved["spans"], values, strict=True):
                total[start:stop] += value
    return found


def _moved(rank, path):
    before = [torch.load(path / str(old)) for old in range(4)]
    model, reducer = _attached(Topology(node=2), DeepGradientCompression(0.05))
    reducer.load_state_dicts(before)
    after = [None] * 2
    torch.distributed.all_gather_object(after, reducer.state_dict())
    sums = _sums(after)
    for kind, total in _sums(before).items():
        assert total.any()
        torch.testing.assert_close(sums[kind], total, rtol=1e-5, atol=1e-7)
    _backward(model, rank, 3)


def test_on_other_ranks_the_sums_of_residuals_and_velocities_stay(ranks, tmp_path):
    ranks(4, _state, tmp_path)
    ranks(2, _moved, tmp_path)


def _poisoned(rank):
    dgc = DeepGradientCompression(0.1)
    (model, _), (clean, _) = _attached(HOSTS, dgc), _attached(HOSTS, dgc)
    for each in (model, clean):
        _backward(each, rank, 0)
    model.zero_grad()
    (model(_inputs(rank, 1)).sum() * float("nan" if rank == 1 else 1)).backward()
    assert model.weight.grad.isnan().any()
    assert torch.equal(_backward(model, rank, 2), _backward(clean, rank, 2))


def test_a_gradient_with_nan_leaves_momentum_and_residuals_as_they_were(ranks):
    ranks(4, _poisoned)
