"""A few values and where they belong: how they lie in the payload of a sparse codec.

Payload: how many of the values lie in each stretch of 65,536 positions (int32 each), their positions within it less
32,768 (int16), padding, their values (bfloat16), padding. Where fewer than the payload holds are sent, zeros fill the
last stretch. A value of NaN makes all that is decoded NaN.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gradwire.comm.codecs.codec import padded
from gradwire.comm.errors import CodecError

_STRETCH = 65_536
_LARGEST = torch.finfo(torch.bfloat16).max


@runtime_checkable
class SparseCodec(Protocol):
    """A codec that sends some of the values and leaves the others, with what error feedback of its own needs."""

    @property
    def ratio(self) -> float: ...

    def positions(self, payload: Tensor, count: int) -> Tensor:
        """Where the payload of `count` values has values other than zero: int64, ascending."""
        ...


def check_ratio(ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise CodecError(f"ratio is the share of values to send, above 0 and at most 1, found {ratio}")


def kept(ratio: float, count: int) -> int:
    """How many of `count` values are sent."""
    return min(count, math.ceil(ratio * count))


def has_no_number(values: Tensor) -> bool:
    """Is any value NaN or infinite?"""
    if not values.numel():
        return False
    return not all(bool(end.isfinite()) for end in values.aminmax())


@dataclass(frozen=True)
class Entries:
    """`kept` values out of `count`."""

    count: int
    kept: int

    @property
    def _stretches(self) -> int:
        return -(-self.count // _STRETCH)

    def nbytes(self) -> int:
        return 4 * self._stretches + 2 * padded(2 * self.kept)

    def write(self, payload: Tensor, positions: Tensor, values: Tensor) -> Tensor:
        """Write at most `kept` values at ascending positions. Returns them as they will be decoded, float32."""
        counts, places, numbers = self._parts(payload)
        payload[4 * self._stretches :].zero_()
        stretches = positions // _STRETCH
        sent = positions.numel()
        counts.copy_(torch.bincount(stretches, minlength=self._stretches))
        counts[-1:].add_(self.kept - sent)
        places.fill_(-_STRETCH // 2)
        places[:sent].copy_(positions - stretches * _STRETCH - _STRETCH // 2)
        numbers[:sent].copy_(values.clamp(-_LARGEST, _LARGEST))
        return numbers[:sent].float()

    def write_nothing(self, payload: Tensor) -> None:
        """Write what makes everything decode to NaN."""
        nothing = torch.empty(0, dtype=torch.int64, device=payload.device)
        self.write(payload, nothing, nothing.float())
        self._parts(payload)[2].fill_(float("nan"))

    def read(self, payload: Tensor) -> tuple[Tensor, Tensor]:
        """Positions [kept] int64 and values [kept] float32. Raises CodecError for bytes that no encoder wrote."""
        counts, places, numbers = self._parts(payload)
        if bool((counts < 0).any()) or int(counts.sum()) != self.kept:
            raise CodecError(f"a sparse payload holds {self.kept} values, found {counts.tolist()[:8]} in its stretches")
        stretches = torch.arange(self._stretches, device=payload.device)
        starts = torch.repeat_interleave(stretches * _STRETCH + _STRETCH // 2, counts, output_size=self.kept)
        positions = starts + places
        if self.kept and not 0 <= int(positions.min()) <= int(positions.max()) < self.count:
            raise CodecError(f"a sparse payload of {self.count} values holds positions outside of them")
        return positions, numbers.float()

    def _parts(self, payload: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = 4 * self._stretches, 4 * self._stretches + padded(2 * self.kept)
        counts = payload[:first].view(torch.int32)
        places = payload[first : first + 2 * self.kept].view(torch.int16)
        return counts, places, payload[second : second + 2 * self.kept].view(torch.bfloat16)
