"""Parameters laid end to end and cut anywhere: the stretch of each that a rank holds, and what is saved of it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.checkpoint import Cut, Sharded, Slice, Wanted

Bounds = tuple[int, int]
"""First element and end, of a parameter's elements in the order in which they lie."""
Piece = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a slice of a tensor begins, and its shape."""


@dataclass(frozen=True)
class Stretch:
    """What the ranks hold of one parameter.

    Args:
        shape: Of the whole parameter.
        bounds: By rank; empty where it holds nothing.
        rank: This one.
    """

    shape: tuple[int, ...]
    bounds: tuple[Bounds, ...]
    rank: int

    @property
    def size(self) -> int:
        """Elements that this rank holds."""
        start, stop = self.bounds[self.rank]
        return stop - start

    @property
    def rows(self) -> tuple[Bounds, ...]:
        """The fewest whole rows that hold what this rank does, as a box of the parameter."""
        start, stop = self.bounds[self.rank]
        inner = math.prod(self.shape[1:])
        whole = tuple((0, size) for size in self.shape)
        return ((start // inner, -(-stop // inner)), *whole[1:]) if whole and inner else whole

    def of(self, value: Tensor | Cut) -> Tensor:
        """This rank's stretch of a whole tensor of the parameter's shape, or of its `rows`."""
        start, stop = self.bounds[self.rank]
        skipped = value.box[0][0] * math.prod(self.shape[1:]) if isinstance(value, Cut) and value.box else 0
        data = value.data if isinstance(value, Cut) else value
        return data.reshape(-1)[start - skipped : stop - skipped]

    def saved(self, here: Tensor) -> Sharded:
        """What is saved of a tensor of which this rank holds `here`, and every rank as much as of the parameter."""
        return Sharded(self.shape, tuple(self._slices(here.detach())))

    def _slices(self, here: Tensor) -> Iterator[Slice]:
        for rank, (start, stop) in enumerate(self.bounds):
            done = 0
            for offsets, sizes in boxes(self.shape, start, stop):
                numel = math.prod(sizes)
                if rank == self.rank:
                    data = here[done : done + numel].view(sizes)
                else:
                    data = torch.empty(sizes, dtype=here.dtype, device="meta")
                yield Slice(offsets, data, rank)
                done += numel


def boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Piece]:
    """The fewest slices that together are the elements `start` to `stop` of a tensor, in their order.

    A stretch is whole rows with a part of a row before and after them, and each part is cut in the same way.
    """
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    inner = math.prod(shape[1:])
    row, skipped = divmod(start, inner)
    rows = 0 if skipped else (stop - start) // inner
    if rows:
        end = start + rows * inner
        yield (row, *(0 for _ in shape[1:])), (rows, *shape[1:])
    else:
        end = min((row + 1) * inner, stop)
        for offsets, sizes in boxes(shape[1:], skipped, end - row * inner):
            yield (row, *offsets), (1, *sizes)
    yield from boxes(shape, end, stop)


def wanted(stretches: Mapping[str, Stretch]) -> Wanted:
    """What this rank needs of a snapshot: the rows that it holds a part of, of whatever bears a parameter's name."""

    def box(path: tuple[str | int, ...], shape: tuple[int, ...]) -> tuple[Bounds, ...] | None:
        names = [name for name in path if isinstance(name, str) and name in stretches]
        return stretches[names[-1]].rows if names and stretches[names[-1]].shape == shape else None

    return box


def portable(tree: Any, stretches: Mapping[str, Stretch]) -> Any:
    """A tree by parameter name as it is saved: what lies in stretches as what is saved of that."""
    if not isinstance(tree, Mapping):
        return tree
    return {name: value if name not in stretches else _portable(value, stretches[name]) for name, value in tree.items()}


def _portable(value: Any, stretch: Stretch) -> Any:
    if isinstance(value, Mapping):
        return {key: _portable(each, stretch) for key, each in value.items()}
    if isinstance(value, Tensor) and value.dim() == 1 and value.numel() == stretch.size:
        return stretch.saved(value)
    return value
