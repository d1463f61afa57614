from typing import Any

import pytest
import torch
from torch.nn import functional

from gradwire.trainer.models import ConvNet, ModelError


def test_an_image_becomes_one_logit_for_each_class() -> None:
    assert ConvNet()(torch.randn(5, 1, 8, 8)).shape == (5, 10)


def test_each_further_stage_halves_the_image_and_doubles_the_channels() -> None:
    model = ConvNet(width=8, stages=3, blocks=1)
    x = model.stem(torch.randn(2, 1, 8, 8))
    shapes = []
    for block in model.blocks:
        x = block(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(8, 8, 8), (16, 4, 4), (32, 2, 2)]


def test_training_moves_the_running_statistics_and_evaluation_uses_them() -> None:
    model = ConvNet()
    images = torch.randn(16, 1, 8, 8) * 3 + 5
    before = model.stem[1].running_mean.clone()
    model(images)
    assert not torch.equal(model.stem[1].running_mean, before)
    model.eval()
    torch.testing.assert_close(model(images)[:3], model(images[:3]), rtol=1e-4, atol=1e-5)


def test_it_learns_real_digits() -> None:
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    model = ConvNet(width=8, blocks=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for start in 2 * list(range(0, 1280, 32)):
        loss = functional.cross_entropy(model(images[start : start + 32]), labels[start : start + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()
    assert accuracy > 0.8


@pytest.mark.parametrize("sizes", [{"width": 0}, {"stages": 0}, {"blocks": 0}, {"dropout": 1.5}, {"dropout": -0.1}])
def test_sizes_out_of_range_are_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(sizes))):
        ConvNet(**sizes)
