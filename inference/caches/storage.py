"""How keys or values lie in memory: as they are, or in eight bits."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

Index = Any  # what selects rows of a tensor, the last axis left out


class Part(Protocol):
    """A stretch of the rows of every layer."""

    def write(self, number: int, rows: Tensor) -> None:
        """Put rows [..., E] into one of the parts along the first axis."""
        ...

    def read(self, number: int) -> Tensor:
        """The rows of one of them."""
        ...


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

    def part(self, index: tuple[slice, ...]) -> Part:
        """A stretch of memory, cut out once for all that is along the first axis."""
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
        self._rows[index] = rows.detach().to(self._rows.dtype)  # what is kept has no gradient

    def read(self, index: Index) -> Tensor:
        if isinstance(index, Tensor):  # whole rows of memory, which other kinds of index copy number by number
            return functional.embedding(index, self._rows.flatten(1)).view(*index.shape, *self._rows.shape[1:])
        return self._rows[index]

    def copy(self, target: Index, source: Index) -> None:
        self._rows[target] = self._rows[source]

    def part(self, index: tuple[slice, ...]) -> "_Views":
        return _Views(self._rows[index].unbind(0))


class _Views:
    """Views of memory along its first axis."""

    def __init__(self, views: tuple[Tensor, ...]) -> None:
        self._views = views

    def write(self, number: int, rows: Tensor) -> None:
        self._views[number].copy_(rows.detach())

    def read(self, number: int) -> Tensor:
        return self._views[number]
