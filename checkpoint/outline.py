"""The tensors of a snapshot by name, without their values."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.checkpoint import tree
from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.errors import UnsupportedState
from gradwire.checkpoint.loading import check_tree
from gradwire.checkpoint.snapshot import Part, local_places, read_parts, shared_places
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import StoredTensor
from gradwire.checkpoint.unpacking import read_scattered


@dataclass(frozen=True, eq=False)
class Named:
    """A tensor of a snapshot.

    Args:
        name: Where it hangs: `shared.model.weight`, or `local[3].residual` of rank 3; of a slice of a tensor also
            where it begins, `shared.model.weight@64,0`.
        part: The part that lists it.
        index: Its place in that part's list.
    """

    name: str
    part: Part
    index: int

    @property
    def stored(self) -> StoredTensor:
        return self.part.tensors[self.index]

    @property
    def content(self) -> tuple[object, ...]:
        """Equal for tensors of equal type, shape and bytes; unequal tensors differ in it."""
        chunks = tuple((chunk.length, chunk.digest) for chunk in self.stored.chunks)
        return (self.stored.dtype, self.stored.shape, chunks)


@dataclass(frozen=True)
class Outline:
    """What a snapshot holds.

    Args:
        tensors: Its tensors, the shared ones first.
        values: Its other values (numbers, texts, truth values), by name.
        parts: What it was read from, in order of rank.
    """

    tensors: tuple[Named, ...]
    values: dict[str, Any]
    parts: tuple[Part, ...]


def read_outline(store: Store, commit: Commit) -> Outline:
    """The names of what a snapshot holds; no pack is read.

    Raises:
        DamagedCheckpoint: a part is missing, altered or contradicts itself.
        UnsupportedFormat: it was written in a newer format.
        StoreError: a part could not be read.
    """
    return outline_of(read_parts(store, commit.parts), f"{store.url}: {commit.name}")


def outline_of(parts: Sequence[Part], where: str) -> Outline:
    """The names of what parts, in order of rank, hold; they are held to what restoring holds them to.

    Raises DamagedCheckpoint as `read_outline` does.
    """
    tensors: list[Named] = []
    values: dict[str, Any] = {}
    trees = [
        ("shared", parts[0].shared, shared_places(parts, where)),
        *((f"local[{part.rank}]", part.local, local_places(part)) for part in parts),
    ]
    for name, node, places in trees:
        check_tree(places, node, f"{where}, {name}")
        for path, leaf in _leaves(tree.decode(node, _marker, f"{where}, {name}", _slices), name):
            if not isinstance(leaf, Tensor):
                values[path] = leaf
            else:
                tensors.append(Named(path, *places[int(leaf)]))
    if _is_of_torch(parts):
        from gradwire.checkpoint.dcp.parts import described  # torch's adapter is imported where it was used

        with suppress(UnsupportedState):  # it only has that name
            described(parts, where)
    return Outline(tuple(tensors), values, tuple(parts))


def _is_of_torch(parts: Sequence[Part]) -> bool:
    """Whether torch.distributed.checkpoint saved this: see the format."""
    own = [[key for key, _ in part.local["dict"]] for part in parts]
    return parts[0].shared == {"dict": []} and all(keys == ["dcp"] for keys in own)


def _marker(number: int) -> Tensor:
    """Stands for a tensor of that number until its place is found."""
    return torch.tensor(number)


@dataclass(frozen=True)
class _Slices:
    """A tensor in slices: where each begins, and its marker."""

    begins: list[tuple[tuple[int, ...], Tensor]]


def _slices(path: tree.Path, shape: tuple[int, ...], begins: tree.Begins) -> _Slices:
    return _Slices([(offsets, _marker(number)) for offsets, number in begins])


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}")
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}[{index}]")
    elif isinstance(node, _Slices):
        for offsets, marker in node.begins:
            yield f"{path}@{','.join(map(str, offsets))}", marker
    else:
        yield path, node


def batches(tensors: Iterable[Named], most: int) -> Iterator[list[Named]]:
    """The tensors in runs that take at most `most` bytes, or that are one tensor; neighbors lie in the same packs."""
    batch: list[Named] = []
    size = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.part.rank, tensor.index)):
        if batch and size + tensor.stored.nbytes > most:
            yield batch
            batch, size = [], 0
        batch.append(tensor)
        size += tensor.stored.nbytes
    if batch:
        yield batch


def read_values(store: Store, tensors: Sequence[Named]) -> list[Tensor]:
    """The values of tensors, verified. Raises as `read_scattered` does."""
    return read_scattered(store, [(tensor.part.packs, tensor.stored) for tensor in tensors])
