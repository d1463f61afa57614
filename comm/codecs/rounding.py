"""Random numbers that are counted: a function of a seed and a position, so there is no generator to save."""

from typing import Literal, get_args

import torch
from torch import Tensor

from gradwire.comm.errors import CodecError

Rounding = Literal["nearest", "stochastic"]

_GOLDEN = -1640531527  # 2^32 / golden ratio, as int32
_BITS = 0xFFFFFFFF


def check_rounding(rounding: str) -> None:
    if rounding not in get_args(Rounding):
        raise CodecError(f"rounding is one of {', '.join(get_args(Rounding))}, found {rounding!r}")


def mix(x: Tensor) -> Tensor:
    """Scramble int32 so that every bit depends on every bit (Wellons' lowbias32: bias 0.17 in 2^-10, a bijection)."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -2073254261  # 0x846ca68b
    return x ^ ((x >> 16) & 0xFFFF)


def row_keys(seed: int, rows: int, first: int, device: torch.device) -> Tensor:
    """A key [rows] int32 for each row from `first` on, of a 64-bit seed."""
    low, high = (_signed(seed), _signed(seed >> 32))
    key = torch.arange(first, first + rows, dtype=torch.int32, device=device)
    return mix(mix(key ^ low) ^ high)


def uniform(keys_R1: Tensor, columns: Tensor) -> Tensor:
    """Multiples of 2^-24 in [0, 1), float32, for each row's key and column (broadcast against each other)."""
    return ((mix(keys_R1 + columns * _GOLDEN) >> 8) & 0xFFFFFF).float() * 2.0**-24


def _signed(word: int) -> int:
    word &= _BITS
    return word - (1 << 32) if word >> 31 else word
