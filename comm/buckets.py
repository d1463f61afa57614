"""Flat buckets that gradients travel in, laid out from the module alone."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from gradwire.comm.factors import Rows

_ALIGNMENT = 64  # bytes at which every gradient begins

_Members = list[tuple[str, nn.Parameter]]


@dataclass(frozen=True, eq=False)
class Slot:
    """One parameter's place: `view` is the part of the bucket that is its gradient."""

    index: int
    name: str
    parameter: nn.Parameter
    view: Tensor
    bucket: int

    def take(self, scale: float) -> None:
        """Move the parameter's gradient into the bucket, times `scale`, unless it lies there already."""
        if torch.is_grad_enabled():  # backward(create_graph=True)
            with torch.no_grad():
                self.take(scale)
            return
        gradient, view = self.parameter.grad, self.view
        assert gradient is not None
        if gradient is view:
            if scale != 1.0:
                view.mul_(scale)
            return
        gradient = gradient if gradient.layout is torch.strided else gradient.to_dense()
        if scale != 1.0:
            torch.mul(gradient, scale, out=view)
        else:
            view.copy_(gradient)
        self.parameter.grad = view


@dataclass(frozen=True, eq=False)
class Bucket:
    """Gradients that are reduced together.

    Attributes:
        flat: What is sent: the slots' views, in order, and the tail.
        gradients: The part of `flat` that the slots' views lie in.
        tail: The part behind it; empty but in the last bucket.
        gaps: What lies between the views; 0 until a codec decodes something else into it.
    """

    index: int
    flat: Tensor
    slots: tuple[Slot, ...]
    tail: Tensor
    gaps: tuple[Tensor, ...]

    @property
    def gradients(self) -> Tensor:
        return self.flat[: self.flat.numel() - self.tail.numel()]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its parameters, in the order in which they lie in `flat`."""
        return tuple(slot.name for slot in self.slots)

    @property
    def size(self) -> int:
        """Bytes of the gradients."""
        return self.gradients.nbytes

    @cached_property
    def matrices(self) -> tuple[Rows, ...]:
        """The gradients of two and more axes as matrices [outermost axis in memory, all others]."""
        found = []
        for slot in self.slots:
            view = slot.view
            if view.dim() >= 2 and view.numel() and not view.is_complex():
                _, rows = max(zip(view.stride(), view.shape, strict=True))
                offset = int(view.storage_offset() - self.flat.storage_offset())
                found.append(Rows(slot.name, 0, offset, rows, view.numel() // rows))
        return tuple(found)

    def __str__(self) -> str:
        names = self.names
        return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)} parameters)"


def lay_out(
    parameters: Iterable[tuple[str, nn.Parameter]], limits: tuple[int, int], tail: int = 0
) -> tuple[Bucket, ...]:
    """Cut the parameters, last registered first, into buckets of one dtype each.

    The layout depends on the order, shapes and dtypes of the parameters and on nothing else, so it is the same on every
    rank and in every process of a run. Buckets are numbered in the order in which backward is expected to fill them.

    Args:
        parameters: Names and parameters in registration order, each parameter once, all on one device.
        limits: Bytes at which the first bucket of a dtype, and every other one, counts as full.
        tail: Elements to leave behind the gradients of the last bucket.
    """
    full: list[_Members] = []
    filling: dict[torch.dtype, _Members] = {}
    filled: dict[torch.dtype, int] = {}
    limit: dict[torch.dtype, int] = {}
    for name, parameter in reversed(list(parameters)):
        kind = parameter.dtype
        filling.setdefault(kind, []).append((name, parameter))
        filled[kind] = filled.get(kind, 0) + _padded(parameter) * parameter.itemsize
        if filled[kind] >= limit.get(kind, limits[0]):
            full.append(filling.pop(kind))
            filled[kind], limit[kind] = 0, limits[1]
    full.extend(filling.values())
    starts = [0, *itertools.accumulate(len(members) for members in full)]
    return tuple(
        _build(index, members, start, tail if index == len(full) - 1 else 0)
        for index, (members, start) in enumerate(zip(full, starts, strict=False))
    )


def _padded(parameter: Tensor) -> int:
    """Elements that a gradient occupies."""
    step = _ALIGNMENT // parameter.itemsize
    return -(-parameter.numel() // step) * step


def _build(index: int, members: _Members, first: int, tail: int) -> Bucket:
    sizes = [*(_padded(parameter) for _, parameter in members), tail]
    flat = torch.zeros(sum(sizes), dtype=members[0][1].dtype, device=members[0][1].device)
    *parts, end = torch.split(flat, sizes)
    slots = tuple(
        Slot(first + place, name, parameter, _view(part, parameter), index)
        for place, ((name, parameter), part) in enumerate(zip(members, parts, strict=True))
    )
    gaps = [part[parameter.numel() :] for part, (_, parameter) in zip(parts, members, strict=True)]
    return Bucket(index, flat, slots, end, tuple(gap for gap in gaps if gap.numel()))


def _view(part: Tensor, parameter: nn.Parameter) -> Tensor:
    """A gradient over `part` in the parameter's own memory layout, where that has no gaps."""
    if parameter.is_contiguous() or not _dense(parameter):
        return part[: parameter.numel()].view(parameter.shape)
    return part.as_strided(parameter.size(), parameter.stride())


def _dense(parameter: Tensor) -> bool:
    """Whether the strides are those of a permuted contiguous tensor."""
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
