"""One process, one device."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class _Done:
    value: Tensor

    def wait(self) -> Tensor:
        return self.value


class Single:
    """Trains in one process without any communication.

    Args:
        device: Where to train; the first GPU where there is one, else the CPU.
    """

    rank = 0
    world_size = 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._carried: list[int] = []

    def prepare(self, model: nn.Module) -> nn.Module:
        return model.to(self.device)

    def accumulate(self) -> AbstractContextManager[None]:
        return nullcontext()

    def carry(self, counts: Sequence[int]) -> None:
        self._carried = list(counts)

    def carried(self) -> list[int]:
        return self._carried

    def start_sum(self, values: Tensor) -> _Done:
        return _Done(values)

    def gather(self, values: Tensor) -> list[Tensor]:
        return [values]

    def synchronize_buffers(self, model: nn.Module) -> None:
        """Nothing to do: there is one set of buffers."""

    def check_replicas(self, model: nn.Module) -> None:
        """Nothing to compare."""
