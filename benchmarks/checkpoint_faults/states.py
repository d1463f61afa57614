"""States that are functions of the update, so that any process can tell whether one came back bit by bit."""

from typing import Any

import torch
from torch import Tensor

SIZE = 300


def tensors_at(update: int) -> dict[str, Tensor]:
    """Weights that change, weights that never do, and one that alternates between two values."""
    generator = torch.Generator().manual_seed(update)
    return {
        "weight": torch.randn(SIZE, generator=generator),
        "frozen": torch.arange(SIZE, dtype=torch.float32),
        "alternating": torch.full((SIZE,), float(update % 2)),
        "step": torch.tensor(float(update)),
    }


def same(first: Any, second: Any) -> bool:
    """Whether two dicts of tensors are equal to the bit."""
    return list(first) == list(second) and all(
        first[name].dtype == second[name].dtype
        and first[name].shape == second[name].shape
        and first[name].numpy().tobytes() == second[name].numpy().tobytes()
        for name in first
    )
