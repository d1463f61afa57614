import copy

import torch
from torch import nn

from gradwire.trainer.blocks import checkpoint_activations
from gradwire.trainer.models import ConvNet


def _trained(model: nn.Module) -> nn.Module:
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model(images).square().sum().backward()
    return model


def test_recomputed_activations_change_neither_gradients_nor_running_statistics() -> None:
    torch.manual_seed(0)
    model = ConvNet(dropout=0.0)
    recomputed = copy.deepcopy(model)
    checkpoint_activations(recomputed)
    plain, checkpointed = _trained(model), _trained(recomputed)
    for one, other in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
    for (name, one), (_, other) in zip(plain.named_buffers(), checkpointed.named_buffers(), strict=True):
        assert torch.equal(one, other), name
