"""One bit a value: its sign, with the mean magnitude of each block."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.comm.codecs.blocks import Blocks, Kernels, bits, block_scale, check_block, reciprocal
from gradwire.comm.codecs.codec import Codec

_EXACT = 2**24  # whole numbers up to here add up exactly in float32, in whatever order


def _scale(values_R8K: Tensor) -> Tensor:
    """The mean magnitude [R], from magnitudes rounded so that their sum does not depend on its order."""
    magnitude_R8K = values_R8K.abs()
    amax_R = magnitude_R8K.amax((1, 2))
    count = values_R8K.shape[1] * values_R8K.shape[2]
    levels = _EXACT // count
    parts_R8K = (magnitude_R8K * reciprocal(amax_R)[:, None, None] * levels).round()
    mean_R = parts_R8K.sum((1, 2)) * (1 / (levels * count)) * amax_R
    return block_scale(mean_R, 1)


def _pack(values_R8K: Tensor) -> Tensor:
    byte_RK = torch.where(values_R8K[:, 0] < 0, 1.0, 0.0)
    for plane in range(1, 8):
        byte_RK = byte_RK + torch.where(values_R8K[:, plane] < 0, 2.0**plane, 0.0)
    return byte_RK.to(torch.uint8)


def _unpack(codes_RK: Tensor, scales_R: Tensor) -> Tensor:
    return (1 - bits(codes_RK, 8) * 2).float() * scales_R.float()[:, None, None]


def _encode(values_R8K: Tensor, scales_R: Tensor, codes_RK: Tensor) -> None:
    scales_R.copy_(_scale(values_R8K))
    codes_RK.copy_(_pack(values_R8K))


def _encode_error(values_R8K: Tensor, scales_R: Tensor, codes_RK: Tensor, error_R8K: Tensor) -> None:
    scale_R = _scale(values_R8K)
    scales_R.copy_(scale_R)
    codes_RK.copy_(_pack(values_R8K))
    scale_R11 = scale_R[:, None, None]
    error_R8K.copy_(values_R8K - torch.where(values_R8K < 0, -scale_R11, scale_R11))


def _decode(scales_R: Tensor, codes_RK: Tensor, out_R8K: Tensor) -> None:
    out_R8K.copy_(_unpack(codes_RK, scales_R))


def _decode_add(scales_R: Tensor, codes_RK: Tensor, out_R8K: Tensor) -> None:
    out_R8K.add_(_unpack(codes_RK, scales_R))


_KERNELS = Kernels.of(_encode, _encode_error, _decode, _decode_add)


@dataclass(frozen=True)
class Sign(Codec):
    """Plus or minus the block's mean magnitude (Seide et al. 2014; scaled as in EF-signSGD, arXiv 1901.09847).

    A thirty-second of float32's bytes, and 2 a block. Keeps direction only roughly: it needs error feedback.

    Args:
        block: values that share a magnitude.
    """

    name: ClassVar[str] = "sign"
    feedback: ClassVar[bool] = True
    block: int = 1024

    def __post_init__(self) -> None:
        check_block(self.block)

    @property
    def granule(self) -> int:
        return self.block

    @property
    def _blocks(self) -> Blocks:
        return Blocks(self.block, planes=8)

    def nbytes(self, count: int) -> int:
        return self._blocks.nbytes(count)

    def encode(self, values: Tensor, payload: Tensor, *, seed: int = 0, error: Tensor | None = None) -> None:
        self.check(values, payload, error)
        self._blocks.encode(_KERNELS, values, payload, error, None)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        self._blocks.decode(_KERNELS.decode, payload, out)

    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        self._blocks.decode(_KERNELS.decode_add, payload, out)

    def prepare(self, device: torch.device | str = "cpu") -> None:
        self._blocks.prepare(_KERNELS, device)
