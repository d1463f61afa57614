"""A gradient on its way, until it is given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradwire.comm.cycle import Cycle
from gradwire.comm.memory import Memory
from gradwire.comm.telemetry import Traffic


@dataclass(eq=False)
class Flight:
    """A gradient that was computed and is still to be given.

    Attributes:
        memory: Where it lies.
        cycle: What reduces it; None once that is over.
        sent: Whether that has begun.
        present: Parameters that any rank has a gradient of, once it is over; so with all that follows.
        carried: What travelled with it.
        traffic: What it cost, by axis.
    """

    memory: Memory
    cycle: Cycle | None
    sent: bool = False
    present: frozenset[int] = frozenset()
    carried: list[int] = field(default_factory=list)
    traffic: Mapping[str, Traffic] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        gradients = {slot.name: slot.view for slot in self.memory.slots if slot.index in self.present}
        return {"gradients": gradients, "carried": self.carried}
