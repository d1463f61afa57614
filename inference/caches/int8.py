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
        scales = rows.float().abs().amax(-1) / _LARGEST
        scales = scales.masked_fill(~scales.isfinite(), float("nan"))
        steps = rows.float() / scales.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)
        self._rows[index] = steps.round().nan_to_num(0.0).to(torch.int8)
        self._scales[index] = scales

    def read(self, index: Index) -> Tensor:
        return self._rows[index].to(self._dtype).mul_(self._scales[index].unsqueeze(-1).to(self._dtype))

    def copy(self, target: Index, source: Index) -> None:
        self._rows[target] = self._rows[source]
        self._scales[target] = self._scales[source]
