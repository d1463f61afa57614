"""What the trainer asks of a strategy: how replicas of a model share one update's work."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gradwire.comm import Encoded
from gradwire.comm.choices import Choice
from gradwire.comm.telemetry import Traffic


@dataclass(frozen=True)
class Cost:
    """What reducing gradients cost this rank.

    Attributes:
        exposed: Seconds that backward's end waited; None where there is nothing to wait for.
        axes: By axis of links what went along it, where that is known.
    """

    exposed: float | None = None
    axes: Mapping[str, Traffic] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Reduced:
    """What one rank keeps of an update's reduced gradient; from what all ranks keep it can be put back, bit for bit.

    Attributes:
        shares: This rank's part of every bucket.
        dtypes: Of the elements of every bucket.
        presence: Which parameters have a gradient, eight in a byte.
    """

    shares: tuple[Encoded, ...]
    dtypes: tuple[torch.dtype, ...]
    presence: bytes


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

    @property
    def late(self) -> bool:
        """Whether backward leaves the gradients of the update before, and none in the first one."""
        ...

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
        """The sums that belong to the gradients, once the backward that reduces is over; zeros while there are none."""
        ...

    def settle(self, kept: bool) -> None:
        """The update of the last reduction was applied, or its gradient thrown away."""
        ...

    def rescale(self, factor: float) -> None:
        """Gradients come multiplied with `factor` from now on, compared with before."""
        ...

    def drain(self) -> None:
        """Wait until no gradient is under way. A collective."""
        ...

    def carries(self) -> bool:
        """Whether ranks carry over, from update to update, what depends on their own gradients (what codecs lost)."""
        ...

    def record(self) -> str | None:
        """Keep, from the next reduction on, what it follows from; why that cannot be, for people."""
        ...

    def reduced(self) -> Reduced:
        """Of the last reduction, this rank's share. Its memory is used again once it is given back."""
        ...

    def give_back(self, reduced: Reduced) -> None:
        """It was copied."""
        ...

    def put_back(self, reduced: Sequence[Reduced]) -> None:
        """Have the gradients of a reduction, from what all its ranks kept, as if backward had just left them.

        Raises:
            CommError: They are of another model.
        """
        ...

    def cost(self) -> Cost:
        """Of the reductions since the last call."""
        ...

    def tolerances(self) -> Mapping[str, float]:
        """By axis, the relative error past which its codec must not be used any more, where it has such a limit."""
        ...

    def fall_back(self, axis: str) -> None:
        """Use a codec on `axis` that is exact enough for anything; every rank does, between the same two updates."""
        ...

    def choices(self) -> Sequence[Choice]:
        """How gradients are reduced, where that was measured and chosen."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What this rank carries over from update to update beside the model."""
        ...

    def position(self) -> dict[str, Any]:
        """What `state_dict()` holds beside what `carries` means."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from this rank's own `state_dict()`; False, with nothing changed, where it does not fit any more."""
        ...

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> str | None:
        """Continue from those of all ranks of another arrangement; what had to be dropped, for people."""
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
