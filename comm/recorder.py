"""What determines the last reduction of all buckets, for who asks, and reduced gradients put back in their place."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gradwire.comm.buckets import Bucket
from gradwire.comm.encoded import Encoded
from gradwire.comm.errors import CommError
from gradwire.comm.recording import Record


class Recorder:
    """Keeps this rank's share of every bucket of the last reduction, and which parameters have a gradient.

    Args:
        buckets: All of them.
        sparse: Names of parameters with sparse gradients, which travel apart.
        rank: This rank among those that reduce the buckets.
        ranks: How many there are.

    Raises:
        CommError: There are no buckets, or gradients that cannot be recorded.
    """

    def __init__(self, buckets: Sequence[Bucket], sparse: Sequence[str], rank: int, ranks: int) -> None:
        _check(buckets, sparse)
        self._device = buckets[0].flat.device
        self._records = [
            Record(bucket.index, bucket.gradients.numel(), rank, ranks, self._device) for bucket in buckets
        ]
        self._encoded: list[Encoded] | None = None
        self._presence: bytes | None = None
        self._event: torch.cuda.Event | None = None

    def begin(self) -> None:
        """A reduction begins; what is left of the one before is forgotten."""
        self.give_back(self._encoded or ())
        self._encoded = self._presence = self._event = None

    def of(self, bucket: Bucket) -> Record:
        return self._records[bucket.index]

    def complete(self, present: Iterable[int]) -> None:
        """The reduction went well; `present` counts for every parameter the ranks that have a gradient."""
        self._encoded = [share for record in self._records for share in record.take()]
        self._presence = packed(bool(count) for count in present)
        if self._device.type == "cuda":
            self._event = torch.cuda.current_stream(self._device).record_event()

    def take_encoded(self) -> list[Encoded]:
        encoded, self._encoded = self._encoded, None
        if encoded is None:
            raise CommError(_NOTHING)
        if self._event is not None:
            self._event.synchronize()
        return encoded

    def take_presence(self) -> bytes:
        presence, self._presence = self._presence, None
        if presence is None:
            raise CommError(_NOTHING)
        return presence

    def give_back(self, encoded: Iterable[Encoded]) -> None:
        for share in encoded:
            self._records[share.bucket].give_back(share)


@torch.no_grad()
def install(buckets: Sequence[Bucket], flats: Sequence[Tensor], presence: bytes | None) -> None:
    """Put reduced gradients into the buckets and set every `p.grad`.

    Raises:
        CommError: They are of other buckets.
    """
    expected = [(bucket.gradients.numel(), bucket.flat.dtype) for bucket in buckets]
    found = [(flat.numel(), flat.dtype) for flat in flats]
    if found != expected:
        raise CommError(f"the module's buckets have elements {expected}; found gradients of {found}: another module?")
    slots = [slot for bucket in buckets for slot in bucket.slots]
    present = [True] * len(slots) if presence is None else unpacked(presence, len(slots))
    for bucket, flat in zip(buckets, flats, strict=True):
        bucket.gradients.copy_(flat)
    for slot, is_present in zip(slots, present, strict=True):
        slot.parameter.grad = slot.view if is_present else None


def packed(bits: Iterable[bool]) -> bytes:
    """Eight in a byte, the first one lowest."""
    values = list(bits)
    number = sum(1 << place for place, value in enumerate(values) if value)
    return number.to_bytes(-(-len(values) // 8), "little")


def unpacked(presence: bytes, count: int) -> list[bool]:
    """What `packed` was given, so many.

    Raises:
        CommError: It was given more, or fewer.
    """
    number = int.from_bytes(presence, "little")
    if len(presence) != -(-count // 8) or number >> count:
        raise CommError(f"the presence of {count} gradients is another than that in {len(presence)} bytes")
    return [bool(number >> place & 1) for place in range(count)]


def _check(buckets: Sequence[Bucket], sparse: Sequence[str]) -> None:
    if not buckets and not sparse:
        raise CommError("a single process has no buckets to record unless they are asked for: attach(…, recorded=True)")
    complex_ones = [slot.name for bucket in buckets for slot in bucket.slots if slot.view.is_complex()]
    for kind, names in (("sparse", sparse), ("complex", complex_ones)):
        if names:
            raise CommError(f"{', '.join(names)}: {kind} gradients cannot be recorded, only dense ones of real numbers")


_NOTHING = "nothing is recorded that was not taken already: call record(True) before backward, and take it once"
