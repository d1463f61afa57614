"""Eight-bit floats with a scale for each block."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gradwire.comm.codecs.blocks import Blocks, Kernels, block_scale, check_block, numbers, reciprocal
from gradwire.comm.codecs.codec import Codec
from gradwire.comm.errors import CodecError

Format = Literal["e4m3", "e5m2"]

_DTYPES = MappingProxyType({"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2})


def _round(values_R1K: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    largest = torch.finfo(dtype).max
    scale_R = block_scale(values_R1K.abs().amax((1, 2)), largest)
    scaled_R1K = numbers(values_R1K * reciprocal(scale_R)[:, None, None])
    return scale_R, scaled_R1K[:, 0].clamp(-largest, largest).to(dtype)


def _encode(values_R1K: Tensor, scales_R: Tensor, codes_RK: Tensor) -> None:
    scale_R, rounded_RK = _round(values_R1K, codes_RK.dtype)
    scales_R.copy_(scale_R)
    codes_RK.copy_(rounded_RK)


def _encode_error(values_R1K: Tensor, scales_R: Tensor, codes_RK: Tensor, error_R1K: Tensor) -> None:
    scale_R, rounded_RK = _round(values_R1K, codes_RK.dtype)
    scales_R.copy_(scale_R)
    codes_RK.copy_(rounded_RK)
    error_R1K[:, 0].copy_(values_R1K[:, 0] - rounded_RK.float() * scale_R[:, None])


def _decode(scales_R: Tensor, codes_RK: Tensor, out_R1K: Tensor) -> None:
    out_R1K[:, 0].copy_(codes_RK.float() * scales_R.float()[:, None])


def _decode_add(scales_R: Tensor, codes_RK: Tensor, out_R1K: Tensor) -> None:
    out_R1K[:, 0].add_(codes_RK.float() * scales_R.float()[:, None])


_KERNELS = MappingProxyType({name: Kernels.of(_encode, _encode_error, _decode, _decode_add) for name in _DTYPES})


@dataclass(frozen=True)
class Fp8(Codec):
    """A block's scale times a float of eight bits: exacter than int8 where values differ widely.

    Args:
        format: e4m3 (three bits of fraction, range 2^-9 … 448) or e5m2 (two bits, 2^-16 … 57344).
        block: values that share a scale.
    """

    name: ClassVar[str] = "fp8"
    tolerance: ClassVar[float | None] = 0.15
    format: Format = "e4m3"
    block: int = 256

    def __post_init__(self) -> None:
        if self.format not in _DTYPES:
            raise CodecError(f"format is one of {', '.join(_DTYPES)}, found {self.format!r}")
        check_block(self.block)

    @property
    def granule(self) -> int:
        return self.block

    @property
    def _blocks(self) -> Blocks:
        return Blocks(self.block, dtype=_DTYPES[self.format])

    @property
    def _kernels(self) -> Kernels:
        return _KERNELS[self.format]

    def nbytes(self, count: int) -> int:
        return self._blocks.nbytes(count)

    def encode(self, values: Tensor, payload: Tensor, *, seed: int = 0, error: Tensor | None = None) -> None:
        self.check(values, payload, error)
        self._blocks.encode(self._kernels, values, payload, error, None)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        self._blocks.decode(self._kernels.decode, payload, out)

    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        self._blocks.decode(self._kernels.decode_add, payload, out)

    def prepare(self, device: torch.device | str = "cpu") -> None:
        self._blocks.prepare(self._kernels, device)
