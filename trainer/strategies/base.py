"""What the trainer asks of a strategy: how replicas of a model share one update's work."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> Tensor:
        """Block until it is done; the reduced tensor."""
        ...


class Strategy(Protocol):
    """One small class for each way to spread training over processes."""

    rank: int
    world_size: int
    device: torch.device

    def prepare(self, model: nn.Module) -> nn.Module:
        """Place the model on this rank's device and arrange that backward reduces its gradients by summing."""
        ...

    def accumulate(self) -> AbstractContextManager[None]:
        """Within the block backward only accumulates this rank's own gradients."""
        ...

    def carry(self, counts: Sequence[int]) -> None:
        """Sum whole numbers over the ranks together with the next reduction of the gradients; see `carried`."""
        ...

    def carried(self) -> list[int]:
        """The sums, once the backward that reduces is over."""
        ...

    def start_sum(self, values: Tensor) -> Pending:
        """Start summing a small CPU tensor over the ranks, beside the gradients' own traffic."""
        ...

    def gather(self, values: Tensor) -> list[Tensor]:
        """Every rank's small CPU tensor (the same shape everywhere), by rank."""
        ...

    def synchronize_buffers(self, model: nn.Module) -> None:
        """Give every rank the first rank's buffers (running statistics)."""
        ...

    def check_replicas(self, model: nn.Module) -> None:
        """Raise where ranks hold different bits."""
        ...
