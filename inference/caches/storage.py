"""How keys or values lie in memory: as they are, or in eight bits."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

Index = Any  # what selects rows of a tensor, the last axis left out


class Storage(Protocol):
    """Rows of E numbers, allocated once."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        ...

    def write(self, index: Index, rows: Tensor) -> None:
        """Put rows [..., E] in place."""
        ...

    def read(self, index: Index) -> Tensor:
        """Rows [..., E]; a view of the memory where that is possible."""
        ...

    def copy(self, target: Index, source: Index) -> None:
        """Copy rows to others."""
        ...


MakeStorage = Callable[[tuple[int, ...], torch.dtype, torch.device], Storage]


class Plain:
    """Numbers as they are.

    Args:
        shape: The last axis is E.
        dtype: Of the numbers.
        device: Where they are kept.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def write(self, index: Index, rows: Tensor) -> None:
        self._rows[index] = rows.to(self._rows.dtype)

    def read(self, index: Index) -> Tensor:
        return self._rows[index]

    def copy(self, target: Index, source: Index) -> None:
        self._rows[target] = self._rows[source]
