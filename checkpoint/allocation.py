"""Memory for what is large and is written from end to end at once."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

_LARGE = 4 * 2**20
_BLOCK = 32 * 2**20
_ALIGNED = 64


def allocated(nbytes: int) -> Tensor:
    """[nbytes] uint8, not initialized.

    What is large is numpy's, which asks the kernel for huge pages, as torch does not: the first writing to it takes a
    quarter of the time.
    """
    return torch.empty(nbytes, dtype=torch.uint8) if nbytes < _LARGE else torch.from_numpy(np.empty(nbytes, np.uint8))


def allocated_together(sizes: Sequence[int]) -> list[Tensor]:
    """As `allocated`, one for each size. Neighbors share blocks of 32 MiB, which go when the last of them does."""
    return [tensor for some in _runs(sizes) for tensor in _divided(some)]


def _runs(sizes: Sequence[int]) -> Iterator[list[int]]:
    run: list[int] = []
    total = 0
    for size in sizes:
        if run and total + size > _BLOCK:
            yield run
            run, total = [], 0
        run.append(size)
        total += _rounded(size)
    yield run


def _divided(sizes: Sequence[int]) -> Iterator[Tensor]:
    block = allocated(sum(map(_rounded, sizes)) + _ALIGNED).numpy()
    start = -block.ctypes.data % _ALIGNED
    for size in sizes:
        yield torch.from_numpy(block[start : start + size])
        start += _rounded(size)


def _rounded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
