"""What strategies hand to the trainer: costs, reduced gradients, collectives under way, hooks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from gradwire.comm import Encoded
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


class Removable(Protocol):
    """What can be undone."""

    def remove(self) -> None:
        """Undo it."""
        ...


def hook(parameter: nn.Parameter, see: Callable[[Tensor], None]) -> Removable:
    """Have `see` called with each gradient of a parameter before it is accumulated."""
    handle: Removable = parameter.register_hook(see)  # type: ignore[no-untyped-call]
    return handle
