from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.schedulers.noise_scale import NoiseScale
from gradwire.trainer.models import ConvNet
from gradwire.trainer.noise import NoiseMeter
from gradwire.trainer.strategies import Single
from tests.trainer.noisy import CPU, Pass, measured


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(data.target)


def trained_convnet(images: Tensor, labels: Tensor, generator: torch.Generator) -> ConvNet:
    torch.manual_seed(0)
    model = ConvNet(width=8, stages=2, blocks=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        chosen = torch.randint(len(labels), (64,), generator=generator)
        optimizer.zero_grad()
        functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()  # fixed statistics: each sample has a gradient of its own


def convnet_passes(model: nn.Module, sizes: Sequence[int], generator: torch.Generator) -> list[Pass]:
    images, labels = digits()

    def one(size: int) -> Pass:
        chosen = torch.randint(len(labels), (size,), generator=generator)
        return lambda: functional.cross_entropy(model(images[chosen]), labels[chosen], reduction="sum"), size

    return [one(size) for size in sizes]


def gradient_variance(model: nn.Module, size: int, batches: int, generator: torch.Generator) -> float:
    """Variance of the gradient of `size` samples, summed over parameters, from that many gradients of their own."""
    gradients = []
    for loss, _ in convnet_passes(model, [size] * batches, generator):
        model.zero_grad()
        (loss() / size).backward()  # type: ignore[no-untyped-call]
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    return float(torch.stack(gradients).double().var(0).sum())


def test_gradient_variance_falls_as_one_over_the_batch_and_is_what_the_meter_says() -> None:
    generator = torch.Generator().manual_seed(1)
    model = trained_convnet(*digits(), generator)
    sizes = torch.tensor([8, 16, 32, 64, 128, 256])
    variances = torch.tensor([gradient_variance(model, int(size), 64, generator) for size in sizes])
    x, y = sizes.log(), variances.log()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    assert slope == pytest.approx(-1, abs=0.1)
    meter = NoiseMeter({"all": list(model.parameters())})
    scale = NoiseScale(decay=0.99)
    for _ in range(32):
        scale.update(measured(Single(CPU), model, meter, convnet_passes(model, [8] * 8, generator), 64)["all"])
    assert scale.noise is not None
    for size, variance in zip(sizes.tolist(), variances.tolist(), strict=True):
        # A few directions hold the variance (tr(Σ)²/tr(Σ²) is about 4): its standard error from 64 gradients is 9 %,
        # the meter's from 256 about 5 %. A factor of 1.35 is three standard errors of the quotient.
        assert 1 / 1.35 < variance / (scale.noise / size) < 1.35
