"""How a part holds what torch.distributed.checkpoint writes, and torch's metadata rebuilt from the parts.

A rank's own tree is {"dcp": {"tensors": {name: [slice, …]}, "values": {name: value}}}. A slice says the path of the
name in the nested state (None where the state was not flattened), where it begins and the size of the whole tensor, and
has its elements. A value is what is not a tensor: path and value.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from gradwire.checkpoint import tree
from gradwire.checkpoint.errors import DamagedCheckpoint, UnsupportedState
from gradwire.checkpoint.sharded import Slice as TensorSlice
from gradwire.checkpoint.snapshot import Part
from gradwire.checkpoint.tensors import StoredTensor

KEY = "dcp"
Path = tuple[str | int, ...] | None


@dataclass(frozen=True)
class Slice:
    """A slice of a tensor in a part.

    Args:
        name: Of the tensor.
        path: Of the name in the nested state; None where the state was not flattened.
        offsets: Where the slice begins in the tensor.
        size: Of the whole tensor.
        stored: The slice.
        part: Where it is.
    """

    name: str
    path: Path
    offsets: tuple[int, ...]
    size: tuple[int, ...]
    stored: StoredTensor
    part: Part


@dataclass(frozen=True)
class Value:
    """What is not a tensor; fields as in Slice."""

    name: str
    path: Path
    value: Any


def own_tree(slices: Mapping[str, list[dict[str, Any]]], values: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A rank's own tree, of what `slice_entry` and `value_entry` make of each name."""
    return {KEY: {"tensors": slices, "values": values}}


def slice_entry(path: Path, offsets: Sequence[int], size: Sequence[int], tensor: Tensor) -> dict[str, Any]:
    """A slice in a rank's tree."""
    return {"path": path, "offsets": tuple(offsets), "size": tuple(size), "data": tensor}


def value_entry(name: str, path: Path, value: Any) -> dict[str, Any]:
    """A value in a rank's tree.

    Raises:
        UnsupportedState: it is not a JSON-like value; its name is told.
    """
    tree.encode(value, _refuse_tensor, name)
    return {"path": path, "value": value}


def _refuse_tensor(path: str, found: Tensor | TensorSlice) -> NoReturn:
    tensor = found.data if isinstance(found, TensorSlice) else found
    raise UnsupportedState(
        f"{path} is a tensor of shape {tuple(tensor.shape)} inside a value that torch.distributed.checkpoint does not "
        "take apart: keep tensors in dicts and lists, and let the planner flatten the state"
    )


def parse(part: Part, where: str) -> tuple[list[Slice], list[Value]]:
    """The slices and values of a part.

    Raises:
        DamagedCheckpoint: it was not written through the adapter, or its entries contradict themselves.
    """

    def stored(index: int) -> Any:
        if not 0 <= index < len(part.tensors):
            raise DamagedCheckpoint(f"{where}: tensor {index} does not exist")
        return part.tensors[index]

    own = tree.decode(part.local, stored, where)
    entries = own.get(KEY) if isinstance(own, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(entries.get(key), dict) for key in ("tensors", "values")):
        raise DamagedCheckpoint(f"{where} was not written through torch.distributed.checkpoint: restore it instead")
    slices = [
        _slice(name, entry, part, where)
        for name, found in entries["tensors"].items()
        for entry in _listed(found, where)
    ]
    values = [_value(name, entry, where) for name, entry in entries["values"].items()]
    return slices, values


def _listed(entries: Any, where: str) -> list[Any]:
    if not isinstance(entries, list):
        raise DamagedCheckpoint(f"{where}: {str(entries)[:80]} are no slices")
    return entries


def _value(name: Any, entry: Any, where: str) -> Value:
    return Value(str(name), _path(name, entry, "value", where), entry["value"])


def _path(name: Any, entry: Any, content: str, where: str) -> Path:
    if not isinstance(name, str) or not isinstance(entry, dict) or content not in entry:
        raise DamagedCheckpoint(f"{where}: {str(name)[:80]} has an entry that is none: {str(entry)[:80]}")
    path = entry.get("path")
    if path is not None and not (isinstance(path, tuple) and path and all(type(key) in (str, int) for key in path)):
        raise DamagedCheckpoint(f"{where}: {name[:80]} has a path that is none")
    if any(type(key) is int and not 0 <= key < 2**20 for key in path or ()):
        raise DamagedCheckpoint(f"{where}: {name[:80]} is at an index that no list has")
    return path


def _slice(name: Any, entry: Any, part: Part, where: str) -> Slice:
    path = _path(name, entry, "data", where)
    stored, offsets, size = entry["data"], entry.get("offsets"), entry.get("size")
    if not isinstance(stored, StoredTensor) or not _are_sizes(offsets) or not _are_sizes(size):
        raise DamagedCheckpoint(f"{where}: {name[:80]} is not a slice of a tensor")
    fits = len(offsets) == len(size) == len(stored.shape) and all(
        start + length <= whole for start, length, whole in zip(offsets, stored.shape, size, strict=True)
    )
    if not fits:
        raise DamagedCheckpoint(
            f"{where}: {name[:80]} has a slice of {stored.shape} at {offsets}, which does not lie in its {size}"
        )
    return Slice(name, path, offsets, size, stored, part)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is int and 0 <= value < 2**56 for value in values)


def metadata_of(slices: Iterable[Slice], values: Iterable[Value], where: str) -> Metadata:
    """torch's metadata of a snapshot.

    Raises:
        DamagedCheckpoint: slices of a tensor contradict each other, or do not make it up.
    """
    described: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    for piece in slices:
        found = described.setdefault(
            piece.name,
            TensorStorageMetadata(TensorProperties(dtype=piece.stored.dtype), torch.Size(piece.size), []),
        )
        if found.size != piece.size or found.properties.dtype != piece.stored.dtype:
            raise DamagedCheckpoint(f"{where}: the slices of {piece.name[:80]} are of different tensors")
        found.chunks.append(ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.stored.shape)))
        paths[piece.name] = piece.path
    for value in values:
        if value.name in described:
            raise DamagedCheckpoint(f"{where} holds {value.name[:80]} twice")
        described[value.name] = BytesStorageMetadata()
        paths[value.name] = value.path
    incomplete = not_made_up(described)
    if incomplete:
        raise DamagedCheckpoint(f"{where}: {incomplete}")
    known = {name: path for name, path in paths.items() if path is not None}
    return Metadata(described, planner_data=known if len(known) == len(paths) else None)


def not_made_up(described: Mapping[str, Any]) -> str:
    """What is wrong with the first tensor that its slices do not make up, or nothing."""
    for name, found in described.items():
        if isinstance(found, TensorStorageMetadata):
            filled = [chunk for chunk in found.chunks if math.prod(chunk.sizes)]
            have, whole = sum(math.prod(chunk.sizes) for chunk in filled), math.prod(found.size)
            if have != whole or len({tuple(chunk.offsets) for chunk in filled}) != len(filled):
                return f"{name[:80]} has {whole} elements, and its {len(filled)} slices have {have}"
    return ""
