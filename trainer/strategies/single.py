"""One process, one device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.trainer.strategies.base import Strategy


@dataclass(frozen=True)
class _Done:
    value: Tensor

    def wait(self) -> Tensor:
        return self.value


class Single(Strategy):
    """Trains in one process without any communication.

    Args:
        device: Where to train; the first GPU where there is one, else the CPU.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._carried: list[int] = []

    def carry(self, counts: Sequence[int]) -> None:
        self._carried = list(counts)

    def carried(self) -> list[int]:
        return self._carried

    def record(self) -> str | None:
        return "strategy=single reduces nothing; strategy=ddp does, on one process too"

    def start_sum(self, values: Tensor) -> _Done:
        return _Done(values)

    def gather(self, values: Tensor) -> list[Tensor]:
        return [values]
