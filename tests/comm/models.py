"""Small modules and checks that the tests of the reducer share."""

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn


def mlp(width: int = 24, layers: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)])


class Branches(nn.Module):
    """Of its branches, each forward uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.common, self.branches = nn.Linear(24, 24), nn.ModuleList(nn.Linear(24, 24) for _ in range(3))

    def forward(self, inputs: Tensor, branch: int) -> Tensor:
        found: Tensor = self.branches[branch](self.common(inputs))
        return found


def data(rank: int, rows: int = 8, width: int = 24, step: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(100 * step + rank))


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: each.grad.clone() for name, each in module.named_parameters() if each.grad is not None}


def local_gradients(module: nn.Module, *inputs: Tensor) -> dict[str, Tensor]:
    """What this rank alone computes, in float64, summed over the inputs."""
    alone = copy.deepcopy(module).double()
    for each in inputs:
        alone(each.double()).square().mean().backward()
    return gradients(alone)


def summed(local: dict[str, Tensor]) -> dict[str, Tensor]:
    for value in local.values():
        dist.all_reduce(value)
    return local


def assert_same_bits_everywhere(module: nn.Module) -> None:
    for name, gradient in gradients(module).items():
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        first = dense.contiguous().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, dense), name


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=1e-5, atol=1e-7, msg=name)
