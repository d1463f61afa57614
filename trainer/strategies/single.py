"""One process, one device."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.comm import CommError
from gradwire.comm.choices import Choice
from gradwire.trainer.strategies.base import Cost, Reduced


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
    late = False

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

    def settle(self, kept: bool) -> None:
        """Nothing is carried over."""

    def rescale(self, factor: float) -> None:
        """Nothing is carried over."""

    def drain(self) -> None:
        """Nothing is sent."""

    def carries(self) -> bool:
        return False

    def record(self) -> str | None:
        return "strategy=single reduces nothing; strategy=ddp does, on one process too"

    def reduced(self) -> Reduced:
        raise AssertionError("record() said that there is nothing to keep")

    def give_back(self, reduced: Reduced) -> None:
        """Nothing was kept."""

    def put_back(self, reduced: Sequence[Reduced]) -> None:
        raise CommError("strategy=single reduces nothing, so that no reduced gradient can be put back")

    def cost(self) -> Cost:
        return Cost()

    def tolerances(self) -> Mapping[str, float]:
        return {}

    def fall_back(self, axis: str) -> None:
        """Nothing is sent."""

    def choices(self) -> Sequence[Choice]:
        return ()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def position(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        return not state

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> str | None:
        return "what codecs lost so far" if any(state.get("residuals") for state in states) else None

    def start_sum(self, values: Tensor) -> _Done:
        return _Done(values)

    def gather(self, values: Tensor) -> list[Tensor]:
        return [values]

    def synchronize_buffers(self, model: nn.Module) -> None:
        """Nothing to do: there is one set of buffers."""

    def check_replicas(self, model: nn.Module) -> None:
        """Nothing to compare."""
