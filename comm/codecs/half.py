"""What float16 and bfloat16 share: two bytes a value, each by itself."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.comm.codecs.codec import Codec, padded
from gradwire.comm.codecs.compiled import Kernel


def _round(values_N: Tensor, dtype: torch.dtype) -> Tensor:
    limit = torch.finfo(dtype).max
    return torch.where(values_N.isinf(), float("nan"), values_N).clamp(-limit, limit).to(dtype)


def _encode(values_N: Tensor, halves_N: Tensor) -> None:
    halves_N.copy_(_round(values_N, halves_N.dtype))


def _encode_error(values_N: Tensor, halves_N: Tensor, error_N: Tensor) -> None:
    rounded_N = _round(values_N, halves_N.dtype)
    halves_N.copy_(rounded_N)
    error_N.copy_(values_N - rounded_N.float())


def _decode(halves_N: Tensor, out_N: Tensor) -> None:
    out_N.copy_(halves_N.float())


def _decode_add(halves_N: Tensor, out_N: Tensor) -> None:
    out_N.add_(halves_N.float())


@dataclass(frozen=True)
class Halves:
    """Values rounded to the nearest of a two-byte dtype; finite ones beyond its range to its largest."""

    dtype: torch.dtype
    _encode: Kernel = field(default_factory=lambda: Kernel(_encode))
    _encode_error: Kernel = field(default_factory=lambda: Kernel(_encode_error))
    _decode: Kernel = field(default_factory=lambda: Kernel(_decode))
    _decode_add: Kernel = field(default_factory=lambda: Kernel(_decode_add))

    def nbytes(self, count: int) -> int:
        return padded(2 * count)

    def _halves(self, payload: Tensor, count: int) -> Tensor:
        return payload[: 2 * count].view(self.dtype)

    def encode(self, values: Tensor, payload: Tensor, error: Tensor | None) -> None:
        halves = self._halves(payload, values.numel())
        payload[2 * values.numel() :].zero_()
        if error is None:
            self._encode(values, halves)
        else:
            self._encode_error(values, halves, error)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        self._decode(self._halves(payload, out.numel()), out)

    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        self._decode_add(self._halves(payload, out.numel()), out)

    def prepare(self, device: torch.device | str) -> None:
        values, halves, error = (
            torch.ones(256, device=device),
            torch.ones(256, device=device, dtype=self.dtype),
            torch.ones(256, device=device),
        )
        self._encode.prepare(values, halves)
        self._encode_error.prepare(values, halves, error)
        self._decode.prepare(halves, error)
        self._decode_add.prepare(halves, error)


class HalfCodec(Codec):
    """A codec that is nothing but one kind of halves."""

    halves: ClassVar[Halves]

    def nbytes(self, count: int) -> int:
        return self.halves.nbytes(count)

    def encode(self, values: Tensor, payload: Tensor, *, seed: int = 0, error: Tensor | None = None) -> None:
        self.check(values, payload, error)
        self.halves.encode(values, payload, error)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        self.halves.decode(payload, out)

    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        self.halves.decode_add(payload, out)

    def prepare(self, device: torch.device | str = "cpu") -> None:
        self.halves.prepare(device)
