"""What moved between two snapshots, and how far; tensor by tensor."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.outline import Named, batches, read_outline, read_values
from gradwire.checkpoint.reading import reading
from gradwire.checkpoint.store import Store

_BATCH = 256 * 2**20  # bytes read of each snapshot at once
_PIECE = 2**20  # elements compared at once
Change = Literal["equal", "changed", "new", "gone"]


@dataclass(frozen=True)
class Moved:
    """What became of a tensor.

    Args:
        name: Its name.
        change: `equal` to the last bit, `changed`, or there in one snapshot only: `new`, `gone`.
        dtype: Its type of element, in the later snapshot if it is in both.
        shape: Its shape, likewise.
        largest: Largest absolute difference of an element; None where type or shape changed, or it is not in both.
        relative: Euclidean norm of the difference over that of the earlier values (inf where those are zero), likewise.
        elements: Number of elements that differ, likewise.
    """

    name: str
    change: Change
    dtype: str
    shape: tuple[int, ...]
    largest: float | None = None
    relative: float | None = None
    elements: int | None = None


def difference(first_store: Store, first: Commit, second_store: Store, second: Commit) -> Iterator[Moved]:
    """What became of each tensor from one snapshot to another, of any two stores. Equal tensors are not read.

    Raises:
        DamagedCheckpoint: one of them is not whole.
        NoCheckpoint: one of them was removed meanwhile.
        StateTooLarge: a tensor does not fit into memory.
        StoreError: a store could not be read.
    """
    with reading(first_store, first):
        before = {tensor.name: tensor for tensor in read_outline(first_store, first).tensors}
    with reading(second_store, second):
        after = {tensor.name: tensor for tensor in read_outline(second_store, second).tensors}
    yield from (_plain(tensor, "gone") for name, tensor in before.items() if name not in after)
    yield from (_plain(tensor, "new") for name, tensor in after.items() if name not in before)
    compared = []
    for name, tensor in after.items():
        if name in before and tensor.content == before[name].content:
            yield _plain(tensor, "equal", 0.0)
        elif name in before and _alike(before[name], tensor):
            compared.append(tensor)
        elif name in before:
            yield _plain(tensor, "changed")
    for batch in batches(compared, _BATCH):
        yield from _moved(first_store, first, [before[tensor.name] for tensor in batch], second_store, second, batch)


def _moved(
    first_store: Store, first: Commit, before: list[Named], second_store: Store, second: Commit, after: list[Named]
) -> Iterator[Moved]:
    with reading(first_store, first):
        old = read_values(first_store, before)
    with reading(second_store, second):
        new = read_values(second_store, after)
    for tensor, earlier, later in zip(after, old, new, strict=True):
        largest, relative, elements = distance(earlier, later)
        yield _plain(tensor, "changed" if elements else "equal", largest, relative, elements)


def distance(before: Tensor, after: Tensor) -> tuple[float, float, int]:
    """How far a tensor moved: largest absolute difference, relative Euclidean distance, and elements that differ.

    Elements of equal bits do not differ, NaN among them. Computed in float64 (complex128), piece by piece.
    """
    largest = squares = norm = 0.0
    elements = 0
    for old_bits, new_bits in zip(_pieces(_bits(before)), _pieces(_bits(after)), strict=True):
        differing = (old_bits != new_bits).reshape(-1, old_bits.shape[-1]).any(-1)
        elements += int(differing.sum())
        old, new = _wide(old_bits, before.dtype), _wide(new_bits, after.dtype)
        norm += float((old.abs() ** 2).sum())
        if bool(differing.any()):
            gap = (new - old)[differing].abs()
            largest = _larger(largest, float(gap.max()))
            squares += float((gap**2).sum())
    if squares == 0.0:
        return largest, 0.0, elements
    return largest, math.sqrt(squares) / math.sqrt(norm) if norm else math.inf, elements


def _larger(first: float, second: float) -> float:
    return second if math.isnan(second) or second > first else first


def _bits(tensor: Tensor) -> Tensor:
    """[elements, bytes of an element] uint8."""
    return tensor.reshape(-1).view(torch.uint8).reshape(-1, tensor.dtype.itemsize)


def _pieces(bits: Tensor) -> tuple[Tensor, ...]:
    return torch.split(bits, _PIECE) if len(bits) else ()


def _wide(bits: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float4_e2m1fn_x2:
        return bits.reshape(-1).double()  # two numbers in a byte, which torch cannot tell apart: as whole numbers
    values = bits.reshape(-1).contiguous().view(dtype)
    if dtype == torch.complex32:
        return values.to(torch.complex64).to(torch.complex128)
    if dtype in (torch.uint16, torch.uint32, torch.uint64) or (dtype.itemsize == 1 and dtype.is_floating_point):
        return values.to(torch.float32 if dtype.is_floating_point else torch.float64).double()
    return values.to(torch.complex128 if dtype.is_complex else torch.float64)


def _alike(before: Named, after: Named) -> bool:
    return (before.stored.dtype, before.stored.shape) == (after.stored.dtype, after.stored.shape)


def _plain(
    tensor: Named,
    change: Change,
    largest: float | None = None,
    relative: float | None = None,
    elements: int | None = None,
) -> Moved:
    if change == "equal":
        largest, relative, elements = 0.0, 0.0, 0
    stored = tensor.stored
    return Moved(
        tensor.name, change, str(stored.dtype).removeprefix("torch."), stored.shape, largest, relative, elements
    )
