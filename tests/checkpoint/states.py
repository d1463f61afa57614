"""States that the tests save, and how they are compared."""

from typing import Any

import torch
from torch import Tensor

from gradwire.checkpoint import State


def state_at(update: int, size: int = 1000) -> State:
    """A state that is a function of the update alone."""
    generator = torch.Generator().manual_seed(update)
    weights = torch.randn(size, generator=generator)
    return State(
        shared={
            "model": {"weight": weights, "tied": weights, "half": weights[:10].bfloat16(), "empty": torch.empty(0, 3)},
            "optimizer": {"state": {0: {"step": torch.tensor(float(update))}}, "betas": (0.9, 0.999)},
            "average": None,
            "update": update,
        },
        local={"residual": weights[::2] * 3},
    )


def same(first: Any, second: Any) -> bool:
    """Whether two trees are equal in structure, types, dtypes and bits."""
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and list(first) == list(second)
            and all(same(first[key], second[key]) for key in first)
        )
    if isinstance(first, list | tuple):
        return type(first) is type(second) and len(first) == len(second) and all(map(same, first, second))
    return type(first) is type(second) and first == second


def same_state(first: State, second: State) -> bool:
    return same(first.shared, second.shared) and same(first.local, second.local)
