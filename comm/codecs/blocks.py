"""Codes of a few bits with one bfloat16 scale a block: how they lie in the payload, and how kernels are led over them.

Payload: the scales of all blocks, padding to four bytes, the codes of all blocks, padding. A code byte holds values
that lie a plane apart: with P values a byte, byte k of a block of B holds values k, k + B/P, k + 2·B/P, …, the first
one in the lowest bits, so that packing reads and writes contiguous runs. A last short block is filled with zeros to a
multiple of eight values.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.comm.codecs.codec import padded
from gradwire.comm.codecs.compiled import Kernel
from gradwire.comm.codecs.rounding import row_keys
from gradwire.comm.errors import CodecError

_SMALLEST = 2.0**-126  # scales below are zero: their reciprocals would overflow
_LARGEST_BLOCK = 65_536
_LARGEST_FLOAT = torch.finfo(torch.float32).max
_HEADROOM = 1.004  # past the 2^-8 by which rounding to bfloat16 may lower a scale


def block_scale(amax_R: Tensor, steps: float, *, covers: bool = False) -> Tensor:
    """The scales [R] at which amax becomes `steps`, bfloat16 as float32: NaN where amax is not finite, else finite.

    steps · scale does not overflow. Rounded to nearest, a scale may leave amax 2^-8 beyond `steps`; where it `covers`
    amax, never beyond, as stochastic rounding needs to have no bias.
    """
    largest = _LARGEST_FLOAT / steps * (1 - 2**-7)  # rounding to bfloat16 may raise it by 2^-8
    wanted_R = (amax_R * ((_HEADROOM if covers else 1.0) / steps)).clamp(max=largest)
    scale_R = torch.where(amax_R.isfinite(), wanted_R, float("nan")).to(torch.bfloat16).float()
    return torch.where(scale_R < _SMALLEST, 0.0, scale_R)


def reciprocal(scale_R: Tensor) -> Tensor:
    """1 / scale; 0 where that would overflow, and for NaN."""
    return torch.where(scale_R >= _SMALLEST, scale_R.reciprocal(), 0.0)


def numbers(scaled_RPK: Tensor) -> Tensor:
    """The same with 0 for NaN, which as an integer is one thing to one instruction and another to the next."""
    return torch.where(scaled_RPK == scaled_RPK, scaled_RPK, 0.0)


def bits(codes_RK: Tensor, planes: int) -> Tensor:
    """The codes [R, P, K] int32 of P planes that are packed into bytes."""
    width = 8 // planes
    shifts_P1 = torch.arange(0, 8, width, dtype=torch.int32, device=codes_RK.device)[:, None]
    shifted_RPK = codes_RK.to(torch.int32)[:, None] >> shifts_P1
    return shifted_RPK.bitwise_and(2**width - 1)


def check_block(block: int) -> None:
    """Raise CodecError for a block size that cannot be."""
    if block % 8 or not 8 <= block <= _LARGEST_BLOCK:
        raise CodecError(f"block is a multiple of 8 from 8 to {_LARGEST_BLOCK}, found {block}")


@dataclass(frozen=True)
class Kernels:
    """The four functions of a codec on blocks; R rows (blocks) of P planes of K values.

    encode(values_RPK, scales_R, codes_RK[, keys_R]); encode_error takes error_RPK after the codes;
    decode and decode_add(scales_R, codes_RK, out_RPK). Keys are there where rounding is stochastic.
    """

    encode: Kernel
    encode_error: Kernel
    decode: Kernel
    decode_add: Kernel

    @classmethod
    def of(cls, *functions: Callable[..., None]) -> "Kernels":
        return cls(*(Kernel(function) for function in functions))


@dataclass(frozen=True)
class Blocks:
    """Blocks of `block` values, `planes` of them in a byte (or an element of `dtype`)."""

    block: int
    planes: int = 1
    dtype: torch.dtype = torch.uint8

    def nbytes(self, count: int) -> int:
        blocks = -(-count // self.block)
        return padded(2 * blocks) + padded((count // self.block * self.block + self._short(count)) // self.planes)

    def encode(self, kernels: Kernels, values: Tensor, payload: Tensor, error: Tensor | None, seed: int | None) -> None:
        """Lead the encoding kernels over values [n]; with a seed they get keys."""
        self._pad(payload, values.numel())
        for part in self._parts(values.numel()):
            values_RPK, coded = self._shaped(values, part), self._coded(payload, values.numel(), part)
            keys = () if seed is None else (row_keys(seed, part.rows, part.first, values.device),)
            if error is None:
                kernels.encode(values_RPK, *coded, *keys)
            else:
                error_RPK = self._shaped(error, part)
                kernels.encode_error(values_RPK, *coded, error_RPK, *keys)
                self._put_back(error_RPK, error, part)

    def decode(self, kernel: Kernel, payload: Tensor, out: Tensor) -> None:
        """Lead a decoding kernel over out [n]."""
        for part in self._parts(out.numel()):
            out_RPK = self._shaped(out, part)
            kernel(*self._coded(payload, out.numel(), part), out_RPK)
            self._put_back(out_RPK, out, part)

    def prepare(self, kernels: Kernels, device: torch.device | str, *, seeded: bool = False) -> None:
        """Compile the kernels for this layout."""
        rows = 64
        values, error, out = torch.linspace(-1, 3, 3 * rows * self.block, device=device).view(3, rows, self.planes, -1)
        scales = torch.linspace(0, 1, rows, dtype=torch.bfloat16, device=device)
        codes = torch.empty(rows, self.block // self.planes, dtype=self.dtype, device=device)
        keys = (row_keys(0, rows, 0, values.device),) if seeded else ()
        kernels.encode.prepare(values, scales, codes, *keys)
        kernels.encode_error.prepare(values, scales, codes, error, *keys)
        kernels.decode.prepare(scales, codes, out)
        kernels.decode_add.prepare(scales, codes, out)

    def _pad(self, payload: Tensor, count: int) -> None:
        """Zero what no scale and no code is written to."""
        scales = 2 * -(-count // self.block)
        codes = (count // self.block * self.block + self._short(count)) // self.planes
        payload[scales : padded(scales)].zero_()
        payload[padded(scales) + codes :].zero_()

    def _short(self, count: int) -> int:
        return -(-(count % self.block) // 8) * 8

    def _parts(self, count: int) -> Iterator["_Part"]:
        whole = count // self.block
        if whole:
            yield _Part(0, whole, self.block, 0, whole * self.block)
        if count % self.block:
            yield _Part(whole, 1, self._short(count), whole * self.block, count)

    def _coded(self, payload: Tensor, count: int, part: "_Part") -> tuple[Tensor, Tensor]:
        """The part's scales [R] and codes [R, K]."""
        scales = payload[2 * part.first : 2 * (part.first + part.rows)].view(torch.bfloat16)
        begin = padded(2 * -(-count // self.block)) + part.start // self.planes
        codes = payload[begin : begin + part.rows * part.width // self.planes].view(self.dtype)
        return scales, codes.view(part.rows, part.width // self.planes)

    def _shaped(self, values: Tensor, part: "_Part") -> Tensor:
        """The part as [R, P, K]: a view, or a copy filled up with its own values, which leave its scale as it is."""
        piece, missing = values[part.start : part.stop], part.missing
        if missing:
            piece = torch.cat([piece, piece.repeat(missing)[:missing]])
        return piece.view(part.rows, self.planes, part.width // self.planes)

    def _put_back(self, shaped_RPK: Tensor, out: Tensor, part: "_Part") -> None:
        if part.missing:
            out[part.start : part.stop].copy_(shaped_RPK.view(-1)[: part.stop - part.start])


@dataclass(frozen=True)
class _Part:
    """Blocks of one width: all whole blocks, or the short one at the end."""

    first: int  # block
    rows: int
    width: int  # values a block, filled up
    start: int  # values
    stop: int

    @property
    def missing(self) -> int:
        return self.rows * self.width - (self.stop - self.start)
