"""Momentum correction and warm-up of sparsity."""

import pytest
import torch

from gradwire.comm.codecs import RandomK, TopK
from gradwire.comm.errors import CodecError
from gradwire.comm.momentum import MomentumCorrection, SparsityWarmup


def test_everything_sent_is_plain_gradient_and_clears_the_state() -> None:
    gradient, ones = torch.randn(500).bfloat16().float(), torch.ones(500)
    corrected = MomentumCorrection(TopK(1.0), momentum=0.9)
    payload = torch.empty(corrected.codec.nbytes(500), dtype=torch.uint8)
    u, v, out = torch.empty(500), torch.empty(500), torch.empty(500)
    corrected.encode(gradient, payload, 0 * ones, 0 * ones, pending_velocity=u, pending_accumulated=v)
    corrected.codec.decode(payload, out)
    assert torch.equal(out, gradient)
    assert (u == 0).all()
    assert (v == 0).all()


@pytest.mark.parametrize("nesterov", [False, True])
def test_follows_the_paper(nesterov: bool) -> None:
    torch.manual_seed(0)
    codec, m = TopK(0.05, threshold="exact"), 0.9
    corrected = MomentumCorrection(codec, momentum=m, nesterov=nesterov)
    velocity, accumulated = torch.zeros(1000), torch.zeros(1000)
    u, v = torch.zeros(1000), torch.zeros(1000)
    payload, out = torch.empty(codec.nbytes(1000), dtype=torch.uint8), torch.empty(1000)
    for _ in range(10):
        gradient = torch.randn(1000)
        next_velocity, next_accumulated = torch.empty(1000), torch.empty(1000)
        corrected.encode(
            gradient,
            payload,
            velocity,
            accumulated,
            pending_velocity=next_velocity,
            pending_accumulated=next_accumulated,
        )
        velocity, accumulated = next_velocity, next_accumulated
        u = m * u + gradient
        v = v + (gradient + m * u if nesterov else u)
        sent = v.abs().topk(50).indices
        codec.decode(payload, out)
        assert torch.equal(out.nonzero()[:, 0], sent.sort().values)
        torch.testing.assert_close(out[sent], v[sent], rtol=2**-8, atol=0)
        u[sent] = 0
        v[sent] -= out[sent]
        torch.testing.assert_close(velocity, u)
        torch.testing.assert_close(accumulated, v, atol=1e-5, rtol=1e-5)


def test_state_stays_until_the_step_is_kept() -> None:
    corrected = MomentumCorrection(RandomK(0.1))
    velocity, accumulated = torch.randn(100), torch.randn(100)
    before = velocity.clone(), accumulated.clone()
    payload = torch.empty(corrected.codec.nbytes(100), dtype=torch.uint8)
    bad = torch.full((100,), torch.nan)
    corrected.encode(
        bad, payload, velocity, accumulated, pending_velocity=torch.empty(100), pending_accumulated=torch.empty(100)
    )
    assert torch.equal(velocity, before[0])
    assert torch.equal(accumulated, before[1])


def test_warm_up_gives_the_ratios_of_the_paper() -> None:
    warm = SparsityWarmup(TopK(0.001, threshold="exact"), updates=400, start=0.25)
    ratios = [warm.ratio(update) for update in (0, 99, 100, 200, 300, 399, 400, 10_000)]
    assert ratios == pytest.approx([0.25, 0.25, 0.0629, 0.0158, 0.00398, 0.00398, 0.001, 0.001], rel=2e-2)
    assert warm.at(150) == TopK(warm.ratio(150), threshold="exact")
    assert SparsityWarmup(TopK(), updates=0).at(0) == TopK()


def test_what_cannot_be_is_refused() -> None:
    for make in (
        lambda: MomentumCorrection(TopK(), momentum=1.0),
        lambda: SparsityWarmup(TopK(0.5), updates=10),
        lambda: SparsityWarmup(TopK(), updates=-1),
        lambda: SparsityWarmup(TopK(), updates=1, stages=0),
    ):
        with pytest.raises(CodecError):
            make()
