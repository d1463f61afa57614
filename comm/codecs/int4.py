"""Four bits a value, two values a byte, with a scale for each block."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.comm.codecs.blocks import Blocks, Kernels, bits, block_scale, check_block, numbers, reciprocal
from gradwire.comm.codecs.codec import Codec
from gradwire.comm.codecs.compiled import Kernel
from gradwire.comm.codecs.hadamard import rotate, rotate_back
from gradwire.comm.codecs.rounding import Rounding, check_rounding, uniform

_LARGEST = 7
_NEAREST_STEPS = 7.5  # rounding cuts the largest value by half a step, no more than others lose: 5 % less error in all


def _nearest(values_R2K: Tensor) -> tuple[Tensor, Tensor]:
    scale_R = block_scale(values_R2K.abs().amax((1, 2)), _NEAREST_STEPS)
    exact_R2K = numbers(values_R2K * reciprocal(scale_R)[:, None, None])
    return scale_R, exact_R2K.round().clamp(-_LARGEST, _LARGEST)


def _stochastic(values_R2K: Tensor, keys_R: Tensor) -> tuple[Tensor, Tensor]:
    scale_R = block_scale(values_R2K.abs().amax((1, 2)), _LARGEST, covers=True)
    columns_2K = torch.arange(values_R2K.shape[1] * values_R2K.shape[2], dtype=torch.int32, device=values_R2K.device)
    random_R2K = uniform(keys_R[:, None, None], columns_2K.view(values_R2K.shape[1:]))
    exact_R2K = numbers(values_R2K * reciprocal(scale_R)[:, None, None])
    return scale_R, (exact_R2K + random_R2K).floor().clamp(-_LARGEST, _LARGEST)


def _pack(steps_R2K: Tensor) -> Tensor:
    """In floats, which hold the whole numbers of a byte exactly and fill vector registers."""
    return (steps_R2K[:, 0] + 16 * steps_R2K[:, 1] + 136).to(torch.uint8)


def _unpack(codes_RK: Tensor, scales_R: Tensor) -> Tensor:
    steps_R2K = (bits(codes_RK, 2) - 8).float()
    return steps_R2K * scales_R.float()[:, None, None]


def _encode(values_R2K: Tensor, scales_R: Tensor, codes_RK: Tensor) -> None:
    scale_R, steps_R2K = _nearest(values_R2K)
    scales_R.copy_(scale_R)
    codes_RK.copy_(_pack(steps_R2K))


def _encode_error(values_R2K: Tensor, scales_R: Tensor, codes_RK: Tensor, error_R2K: Tensor) -> None:
    scale_R, steps_R2K = _nearest(values_R2K)
    scales_R.copy_(scale_R)
    codes_RK.copy_(_pack(steps_R2K))
    error_R2K.copy_(values_R2K - steps_R2K * scale_R[:, None, None])


def _encode_stochastic(values_R2K: Tensor, scales_R: Tensor, codes_RK: Tensor, keys_R: Tensor) -> None:
    scale_R, steps_R2K = _stochastic(values_R2K, keys_R)
    scales_R.copy_(scale_R)
    codes_RK.copy_(_pack(steps_R2K))


def _encode_stochastic_error(
    values_R2K: Tensor, scales_R: Tensor, codes_RK: Tensor, error_R2K: Tensor, keys_R: Tensor
) -> None:
    scale_R, steps_R2K = _stochastic(values_R2K, keys_R)
    scales_R.copy_(scale_R)
    codes_RK.copy_(_pack(steps_R2K))
    error_R2K.copy_(values_R2K - steps_R2K * scale_R[:, None, None])


def _decode(scales_R: Tensor, codes_RK: Tensor, out_R2K: Tensor) -> None:
    out_R2K.copy_(_unpack(codes_RK, scales_R))


def _decode_add(scales_R: Tensor, codes_RK: Tensor, out_R2K: Tensor) -> None:
    out_R2K.add_(_unpack(codes_RK, scales_R))


_NEAREST = Kernels.of(_encode, _encode_error, _decode, _decode_add)
_STOCHASTIC = replace(_NEAREST, encode=Kernel(_encode_stochastic), encode_error=Kernel(_encode_stochastic_error))


@dataclass(frozen=True)
class Int4(Codec):
    """A multiple −7 … 7 of a block's scale for each value; an eighth of float32's bytes, and 2 a block.

    One pass over Gaussian values in blocks of 128 is off by 0.11 of their norm, rounded to nearest.

    Args:
        block: values that share a scale; smaller blocks are more exact and larger on the wire.
        rounding: to the nearest, or up or down at random so that the expectation is exact (1.7 times the error).
        hadamard: rotate values across blocks first, which spreads outliers: for gradients with few large values.
    """

    name: ClassVar[str] = "int4"
    feedback: ClassVar[bool] = True
    tolerance: ClassVar[float | None] = 0.4
    block: int = 128
    rounding: Rounding = "nearest"
    hadamard: bool = False

    def __post_init__(self) -> None:
        check_rounding(self.rounding)
        check_block(self.block)

    @property
    def granule(self) -> int:
        return self.block

    @property
    def _blocks(self) -> Blocks:
        return Blocks(self.block, planes=2)

    @property
    def _kernels(self) -> Kernels:
        return _NEAREST if self.rounding == "nearest" else _STOCHASTIC

    def nbytes(self, count: int) -> int:
        return self._blocks.nbytes(count)

    def encode(self, values: Tensor, payload: Tensor, *, seed: int = 0, error: Tensor | None = None) -> None:
        self.check(values, payload, error)
        if self.hadamard:
            self._encode_rotated(values, payload, seed, error)
        else:
            self._encode(values, payload, seed, error)

    def _encode(self, values: Tensor, payload: Tensor, seed: int, error: Tensor | None) -> None:
        self._blocks.encode(self._kernels, values, payload, error, seed if self.rounding == "stochastic" else None)

    def _encode_rotated(self, values: Tensor, payload: Tensor, seed: int, error: Tensor | None) -> None:
        rotated = rotate(values, self.block)
        self._encode(rotated, payload, seed, None)
        if error is not None:
            self._blocks.decode(self._kernels.decode, payload, rotated)
            torch.sub(values, rotate_back(rotated, self.block), out=error)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        self._blocks.decode(self._kernels.decode, payload, out)
        if self.hadamard:
            out.copy_(rotate_back(out, self.block))

    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        if self.hadamard:
            decoded = torch.empty_like(out)
            self._blocks.decode(self._kernels.decode, payload, decoded)
            out.add_(rotate_back(decoded, self.block))
        else:
            self._blocks.decode(self._kernels.decode_add, payload, out)

    def prepare(self, device: torch.device | str = "cpu") -> None:
        self._blocks.prepare(self._kernels, device, seeded=self.rounding == "stochastic")
