"""Signed bytes with a scale for each block."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.comm.codecs.blocks import Blocks, Kernels, block_scale, check_block, numbers, reciprocal
from gradwire.comm.codecs.codec import Codec
from gradwire.comm.codecs.compiled import Kernel
from gradwire.comm.codecs.rounding import Rounding, check_rounding, uniform

_STEPS = 127


def _amax(values_R1K: Tensor) -> Tensor:
    return values_R1K.abs().amax((1, 2))


def _nearest(values_R1K: Tensor, scale_R: Tensor) -> Tensor:
    return numbers(values_R1K * reciprocal(scale_R)[:, None, None]).round().clamp(-_STEPS, _STEPS)


def _stochastic(values_R1K: Tensor, scale_R: Tensor, keys_R: Tensor) -> Tensor:
    columns_K = torch.arange(values_R1K.shape[2], dtype=torch.int32, device=values_R1K.device)
    exact_R1K = numbers(values_R1K * reciprocal(scale_R)[:, None, None])
    return (exact_R1K + uniform(keys_R[:, None, None], columns_K)).floor().clamp(-_STEPS, _STEPS)


def _encode(values_R1K: Tensor, scales_R: Tensor, codes_RK: Tensor) -> None:
    scale_R = block_scale(_amax(values_R1K), _STEPS)
    scales_R.copy_(scale_R)
    codes_RK.copy_(_nearest(values_R1K, scale_R)[:, 0].to(torch.int8))


def _encode_error(values_R1K: Tensor, scales_R: Tensor, codes_RK: Tensor, error_R1K: Tensor) -> None:
    scale_R = block_scale(_amax(values_R1K), _STEPS)
    scales_R.copy_(scale_R)
    steps_R1K = _nearest(values_R1K, scale_R)
    codes_RK.copy_(steps_R1K[:, 0].to(torch.int8))
    error_R1K.copy_(values_R1K - steps_R1K * scale_R[:, None, None])


def _encode_stochastic(values_R1K: Tensor, scales_R: Tensor, codes_RK: Tensor, keys_R: Tensor) -> None:
    scale_R = block_scale(_amax(values_R1K), _STEPS, covers=True)
    scales_R.copy_(scale_R)
    codes_RK.copy_(_stochastic(values_R1K, scale_R, keys_R)[:, 0].to(torch.int8))


def _encode_stochastic_error(
    values_R1K: Tensor, scales_R: Tensor, codes_RK: Tensor, error_R1K: Tensor, keys_R: Tensor
) -> None:
    scale_R = block_scale(_amax(values_R1K), _STEPS, covers=True)
    scales_R.copy_(scale_R)
    steps_R1K = _stochastic(values_R1K, scale_R, keys_R)
    codes_RK.copy_(steps_R1K[:, 0].to(torch.int8))
    error_R1K.copy_(values_R1K - steps_R1K * scale_R[:, None, None])


def _decode(scales_R: Tensor, codes_RK: Tensor, out_R1K: Tensor) -> None:
    out_R1K[:, 0].copy_(codes_RK.float() * scales_R.float()[:, None])


def _decode_add(scales_R: Tensor, codes_RK: Tensor, out_R1K: Tensor) -> None:
    out_R1K[:, 0].add_(codes_RK.float() * scales_R.float()[:, None])


_NEAREST = Kernels.of(_encode, _encode_error, _decode, _decode_add)
_STOCHASTIC = replace(_NEAREST, encode=Kernel(_encode_stochastic), encode_error=Kernel(_encode_stochastic_error))


@dataclass(frozen=True)
class Int8(Codec):
    """A multiple −127 … 127 of a block's scale for each value; a quarter of float32's bytes, and 2 a block.

    One pass over Gaussian values in blocks of 256 is off by 0.0068 of their norm. The largest value of a block decides
    its scale; blocks of NaN or infinite values come out as NaN, values below 2^-126 · 127 as 0.

    Args:
        block: values that share a scale; smaller blocks are more exact and larger on the wire.
        rounding: to the nearest, or up or down at random so that the expectation is exact (1.4 to 2 times the error).
    """

    name: ClassVar[str] = "int8"
    tolerance: ClassVar[float | None] = 0.05
    block: int = 256
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        check_rounding(self.rounding)
        check_block(self.block)

    @property
    def granule(self) -> int:
        return self.block

    @property
    def _blocks(self) -> Blocks:
        return Blocks(self.block, dtype=torch.int8)

    @property
    def _kernels(self) -> Kernels:
        return _NEAREST if self.rounding == "nearest" else _STOCHASTIC

    def nbytes(self, count: int) -> int:
        return self._blocks.nbytes(count)

    def encode(self, values: Tensor, payload: Tensor, *, seed: int = 0, error: Tensor | None = None) -> None:
        self.check(values, payload, error)
        self._blocks.encode(self._kernels, values, payload, error, seed if self.rounding == "stochastic" else None)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        self._blocks.decode(self._kernels.decode, payload, out)

    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        self._blocks.decode(self._kernels.decode_add, payload, out)

    def prepare(self, device: torch.device | str = "cpu") -> None:
        self._blocks.prepare(self._kernels, device, seeded=self.rounding == "stochastic")
