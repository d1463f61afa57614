"""Where the gradients of a module lie while they are reduced."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradwire.comm.buckets import Bucket, Slot
from gradwire.comm.postscript import Postscript


@dataclass(frozen=True, eq=False)
class Memory:
    """A set of buckets.

    Attributes:
        buckets: In the order in which they are sent.
        slots: Of all of them, by their index.
        postscript: Behind the last one; None where numbers cannot travel there.
    """

    buckets: tuple[Bucket, ...]
    slots: tuple[Slot, ...]
    postscript: Postscript | None

    @classmethod
    def of(cls, buckets: Sequence[Bucket], ranks: int) -> "Memory":
        """The buckets as `lay_out` made them, for sums over so many ranks."""
        tail = buckets[-1].tail if buckets else None
        slots = tuple(slot for bucket in buckets for slot in bucket.slots)
        return cls(tuple(buckets), slots, Postscript(tail, ranks) if tail is not None and tail.numel() else None)

    @property
    def device(self) -> torch.device:
        """Of the buckets; the CPU where there are none."""
        return self.buckets[0].flat.device if self.buckets else torch.device("cpu")
