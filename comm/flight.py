"""A gradient on its way, and the memory that it lies in until it is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.comm.buckets import Bucket, Slot
from gradwire.comm.cycle import Cycle
from gradwire.comm.postscript import Postscript
from gradwire.comm.telemetry import Traffic


@dataclass(frozen=True, eq=False)
class Memory:
    """One of the two sets of buckets."""

    buckets: tuple[Bucket, ...]
    slots: tuple[Slot, ...]
    postscript: Postscript | None

    @classmethod
    def of(cls, buckets: Sequence[Bucket], ranks: int) -> "Memory":
        tail = buckets[-1].tail
        slots = tuple(slot for bucket in buckets for slot in bucket.slots)
        return cls(tuple(buckets), slots, Postscript(tail, ranks) if tail.numel() else None)


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
