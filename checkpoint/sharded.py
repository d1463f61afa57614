"""Tensors of which no rank holds everything: their slices, and how they are put together."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwire.checkpoint.errors import UnsupportedState

Box = tuple[tuple[int, int], ...]
"""By axis of a tensor, first element and end."""


@dataclass(frozen=True, eq=False)
class Slice:
    """A box of a tensor.

    Args:
        offsets: Where it begins, by axis.
        data: Its elements; on all ranks but `rank` a tensor of its type and shape on the meta device.
        rank: Who saves it.
    """

    offsets: tuple[int, ...]
    data: Tensor
    rank: int

    @property
    def box(self) -> Box:
        return tuple((start, start + size) for start, size in zip(self.offsets, self.data.shape, strict=True))


@dataclass(frozen=True, eq=False)
class Sharded:
    """A tensor in slices, which stands where a tensor would in the shared state.

    What is restored is the tensor: at any number of ranks, sharded or not.

    Args:
        shape: Of the whole tensor.
        slices: Those of all ranks, on every rank the same ones in the same order; together they make the tensor up.
    """

    shape: tuple[int, ...]
    slices: tuple[Slice, ...]

    def mapped(self, convert: Callable[[Tensor], Tensor]) -> "Sharded":
        """The same with the elements that this rank holds converted."""
        slices = [each if each.data.is_meta else replace(each, data=convert(each.data)) for each in self.slices]
        return Sharded(self.shape, tuple(slices))

    def check(self, path: str) -> None:
        """Raise UnsupportedState unless the slices make up the tensor."""
        if reason := not_made_up(self.shape, [each.box for each in self.slices]):
            raise UnsupportedState(f"{path}: {reason}")


@dataclass(frozen=True, eq=False)
class Cut:
    """What was wanted of a restored tensor that was saved in slices.

    Args:
        shape: Of the whole tensor.
        box: What was wanted.
        data: Its elements.
    """

    shape: tuple[int, ...]
    box: Box
    data: Tensor


Wanted = Callable[[tuple[str | int, ...], tuple[int, ...]], Box | None]
"""Given where a tensor in slices hangs in the tree, and its shape, the box that is wanted of it; None for all."""


def not_made_up(shape: Sequence[int], boxes: Sequence[Box]) -> str:
    """Why boxes do not make up a tensor of this shape, each element once; nothing where they do."""
    for box in boxes:
        if len(box) != len(shape) or any(
            not 0 <= start <= stop <= size for (start, stop), size in zip(box, shape, strict=True)
        ):
            return f"the slice {shown(box)} does not lie in the tensor of {list(shape)}"
    filled = [box for box in boxes if all(start < stop for start, stop in box)]
    have = sum(math.prod(stop - start for start, stop in box) for box in filled)
    if have != math.prod(shape):
        return f"the tensor of {list(shape)} has {math.prod(shape)} elements, and its slices have {have}"
    return _overlap(filled) if shape else ""


def _overlap(boxes: Sequence[Box]) -> str:
    """Which two boxes overlap; nothing where none do. Each is compared with those that reach as far along axis 0."""
    reaching: list[Box] = []
    for box in sorted(boxes):
        reaching = [other for other in reaching if other[0][1] > box[0][0]]
        for other in reaching:
            if overlaps(box, other):
                return f"the slices {shown(other)} and {shown(box)} overlap"
        reaching.append(box)
    return ""


def shown(box: Box) -> str:
    """A box as Python writes it: [0:4, 2:8]."""
    return f"[{', '.join(f'{start}:{stop}' for start, stop in box)}]"


def overlaps(box: Box, other: Box) -> bool:
    """Whether they have an element in common."""
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(box, other, strict=True))


def assembled(box: Box, dtype: torch.dtype, parts: Sequence[tuple[tuple[int, ...], Tensor]]) -> Tensor:
    """What lies in a box of a tensor, of slices that cover it, each given by where it begins and its elements."""
    size = [stop - start for start, stop in box]
    if len(parts) == 1 and list(parts[0][1].shape) == size:
        return parts[0][1]
    found = torch.empty(size, dtype=dtype)
    for offsets, data in parts:
        here, there = [], []
        for (start, stop), offset, length in zip(box, offsets, data.shape, strict=True):
            first, end = max(start, offset), min(stop, offset + length)
            here.append(slice(first - start, end - start))
            there.append(slice(first - offset, end - offset))
        found[tuple(here)] = data[tuple(there)]
    return found
