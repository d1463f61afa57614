"""A rotation that spreads large values: random signs, then Walsh–Hadamard transforms of strided values.

A tensor is taken as rows of a block's length, 128 rows at a time and what remains in powers of two. Each column of such
a group is transformed by itself, and columns are laid one after the other, so that the values of a block are alike. All
steps add and subtract whole rows, in an order that is part of the format: every machine gets the same bits.
The way there is divided by the number of rows, so it cannot overflow; the way back can, past 2^121.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.comm.codecs.rounding import row_keys

_GROUP = 128
_SIGNS = 0x5EED


def rotate(values: Tensor, row: int) -> Tensor:
    """A rotated copy of values [n], in rows of `row`; what does not fill a row stays as it is."""
    rotated = values.clone()
    for group_GK in _groups(rotated, row):
        group_GK.mul_(_signs(group_GK) / group_GK.shape[0])
        _transform(group_GK)
        group_GK.view(row, -1).copy_(group_GK.t().clone(memory_format=torch.contiguous_format))
    return rotated


def rotate_back(values: Tensor, row: int) -> Tensor:
    """The inverse of rotate: a copy."""
    back = values.clone()
    for group_GK in _groups(back, row):
        group_GK.copy_(group_GK.view(row, -1).t().clone(memory_format=torch.contiguous_format))
        _transform(group_GK)
        group_GK.mul_(_signs(group_GK))
    return back


def _groups(values: Tensor, row: int) -> Iterator[Tensor]:
    rows_RK = values[: values.numel() // row * row].view(-1, row)
    start, size = 0, _GROUP
    while size:
        while rows_RK.shape[0] - start >= size:
            yield rows_RK[start : start + size]
            start += size
        size //= 2


def _transform(group_GK: Tensor) -> None:
    """The unnormalized transform of each column, in place (Fino and Algazi 1976)."""
    half = group_GK.shape[0] // 2
    while half:
        pairs_N2HK = group_GK.view(-1, 2, half, group_GK.shape[1])
        upper, lower = pairs_N2HK[:, 0], pairs_N2HK[:, 1]
        difference = upper - lower
        upper.add_(lower)
        lower.copy_(difference)
        half //= 2


def _signs(group_GK: Tensor) -> Tensor:
    keys_G = row_keys(_SIGNS, group_GK.shape[0], 0, group_GK.device)
    return torch.where(keys_G < 0, -1.0, 1.0)[:, None]
