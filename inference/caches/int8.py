"""Keys and values in eight bits."""

import torch
from torch import Tensor

from gradwire.inference.caches.storage import Index

_LARGEST = 127


class Int8:
    """Whole numbers in [-127, 127] with a scale for each row: E + 4 bytes for E numbers.

    The largest number of a row is exact; others are off by at most 1/254 of it. NaN and infinities make their whole
    row NaN. Reading makes a copy as wide as the model computes.

    Args:
        shape: The last axis is E.
        dtype: Of the rows that are read.
        device: Where they are kept.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.zeros(shape, dtype=torch.int8, device=device)
        self._scales = torch.zeros(shape[:-1], dtype=torch.float32, device=device)
        self._dtype = dtype

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._scales.nbytes

    def write(self, index: Index, rows: Tensor) -> None:
        self._rows[index], self._scales[index] = _encoded(rows)

    def read(self, index: Index) -> Tensor:
        return _decoded(self._rows[index], self._scales[index], self._dtype)

    def copy(self, target: Index, source: Index) -> None:
        self._rows[target] = self._rows[source]
        self._scales[target] = self._scales[source]

    def part(self, index: tuple[slice, ...]) -> "_Views":
        return _Views(self._rows[index].unbind(0), self._scales[index].unbind(0), self._dtype)


class _Views:
    """Views of numbers and scales along the first axis."""

    def __init__(self, rows: tuple[Tensor, ...], scales: tuple[Tensor, ...], dtype: torch.dtype) -> None:
        self._rows, self._scales, self._dtype = rows, scales, dtype

    def write(self, number: int, rows: Tensor) -> None:
        steps, scales = _encoded(rows)
        self._rows[number].copy_(steps)
        self._scales[number].copy_(scales)

    def read(self, number: int) -> Tensor:
        return _decoded(self._rows[number], self._scales[number], self._dtype)


def _encoded(rows: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows.detach().float()
    scales = rows.abs().amax(-1) / _LARGEST
    scales = scales.masked_fill(~scales.isfinite(), float("nan"))
    steps = rows / scales.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)
    return steps.round().nan_to_num(0.0).to(torch.int8), scales


def _decoded(steps: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return steps.to(dtype).mul_(scales.unsqueeze(-1).to(dtype))
