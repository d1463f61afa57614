"""How a part holds what torch.distributed.checkpoint writes, and torch's metadata rebuilt from the parts.

A rank's own tree is {"dcp": {"tensors": {name: [slice, …]}, "values": {name: value}}}. A slice says the path of the
name in the nested state (None where the state was not flattened), where it begins and the size of the whole tensor, and
has its elements. A value is what is not a tensor: path and value.
"""

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
from gradwire.checkpoint.document import are_sizes, shown
from gradwire.checkpoint.errors import DamagedCheckpoint, UnsupportedState
from gradwire.checkpoint.loading import check_tree
from gradwire.checkpoint.sharded import Box, not_made_up
from gradwire.checkpoint.sharded import Slice as TensorSlice
from gradwire.checkpoint.snapshot import Part, local_places, shared_places
from gradwire.checkpoint.tensors import StoredTensor

KEY = "dcp"
_OTHER = "was not written through torch.distributed.checkpoint: restore it instead"
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
        UnsupportedState: it was not written through the adapter.
        DamagedCheckpoint: its entries contradict themselves.
    """

    def stored(index: int) -> Any:
        return part.tensors[index]

    check_tree(local_places(part), part.local, where)
    own = tree.decode(part.local, stored, where)
    entries = own.get(KEY) if isinstance(own, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(entries.get(key), dict) for key in ("tensors", "values")):
        raise UnsupportedState(f"{where} {_OTHER}")
    slices = [
        _slice(name, entry, part, where)
        for name, found in entries["tensors"].items()
        for entry in _listed(found, where)
    ]
    values = [_value(name, entry, where) for name, entry in entries["values"].items()]
    return slices, values


def _listed(entries: Any, where: str) -> list[Any]:
    if not isinstance(entries, list):
        raise DamagedCheckpoint(f"{where}: {shown(entries)} are no slices")
    return entries


def _value(name: Any, entry: Any, where: str) -> Value:
    return Value(str(name), _path(name, entry, "value", where), entry["value"])


def _path(name: Any, entry: Any, content: str, where: str) -> Path:
    if not isinstance(name, str) or not isinstance(entry, dict) or content not in entry:
        raise DamagedCheckpoint(f"{where}: {shown(name)} has an entry that is none: {shown(entry)}")
    path = entry.get("path")
    if path is not None and not (isinstance(path, tuple) and path and all(type(key) in (str, int) for key in path)):
        raise DamagedCheckpoint(f"{where}: {name[:80]} has a path that is none")
    return path


def _slice(name: Any, entry: Any, part: Part, where: str) -> Slice:
    path = _path(name, entry, "data", where)
    stored, offsets, size = entry["data"], entry.get("offsets"), entry.get("size")
    if not isinstance(stored, StoredTensor) or not _is_shape(offsets) or not _is_shape(size):
        raise DamagedCheckpoint(f"{where}: {name[:80]} is not a slice of a tensor")
    if not len(offsets) == len(size) == len(stored.shape):
        raise DamagedCheckpoint(f"{where}: {name[:80]} has a slice of another number of axes")
    return Slice(name, path, offsets, size, stored, part)


def _is_shape(values: Any) -> bool:
    return isinstance(values, tuple) and are_sizes(values)


def described(parts: Sequence[Part], where: str) -> tuple[list[Slice], list[Value], Metadata]:
    """The slices and values of a snapshot, and torch's metadata of it; errors as in `parse` and `metadata_of`."""
    check_tree(shared_places(parts, where), parts[0].shared, where)
    if parts[0].shared != {"dict": []}:
        raise UnsupportedState(f"{where} {_OTHER}")
    parsed = [parse(part, f"{where}, part of rank {part.rank}") for part in parts]
    slices = [piece for pieces, _ in parsed for piece in pieces]
    values = [value for _, each in parsed for value in each]
    return slices, values, metadata_of(slices, values, where)


def metadata_of(slices: Iterable[Slice], values: Iterable[Value], where: str) -> Metadata:
    """torch's metadata of a snapshot.

    Raises:
        DamagedCheckpoint: slices of a tensor contradict each other, or do not make it up; or paths lead into lists that
            the snapshot does not fill.
    """
    tensors: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    for piece in slices:
        found = tensors.setdefault(
            piece.name,
            TensorStorageMetadata(TensorProperties(dtype=piece.stored.dtype), torch.Size(piece.size), []),
        )
        if found.size != piece.size or found.properties.dtype != piece.stored.dtype:
            raise DamagedCheckpoint(f"{where}: the slices of {piece.name[:80]} are of different tensors")
        found.chunks.append(ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.stored.shape)))
        paths[piece.name] = piece.path
    for value in values:
        if value.name in tensors:
            raise DamagedCheckpoint(f"{where} holds {value.name[:80]} twice")
        tensors[value.name] = BytesStorageMetadata()
        paths[value.name] = value.path
    known = {name: path for name, path in paths.items() if path is not None}
    if problem := unfit(tensors, known):
        raise DamagedCheckpoint(f"{where}: {problem}")
    return Metadata(tensors, planner_data=known if len(known) == len(paths) else None)


def unfit(found: Mapping[str, Any], paths: Mapping[str, Any]) -> str:
    """Why a snapshot cannot be read back: what is wrong with the first tensor that its slices do not make up, or with
    the paths; nothing where it can.

    Args:
        found: What torch's metadata say, by name.
        paths: Where each name stands in the nested state.
    """
    for name, each in found.items():
        boxes = [_box(chunk) for chunk in each.chunks] if isinstance(each, TensorStorageMetadata) else None
        if boxes is not None and (reason := not_made_up(tuple(each.size), boxes)):
            return f"{name[:80]}: {reason}"
    return _unfilled(paths)


def _unfilled(paths: Mapping[str, Any]) -> str:
    """Why torch could not rebuild the nested state: it makes each list as long as an index in it asks for."""
    lengths: dict[Any, int] = {}
    for name, path in paths.items():
        if len(path) > tree.DEEPEST:
            return f"{name[:80]} is nested more than {tree.DEEPEST} levels deep"
        for depth, key in enumerate(path):
            if isinstance(key, int):
                if key < 0:
                    return f"{name[:80]} is at an index that no list has"
                lengths[path[:depth]] = max(lengths.get(path[:depth], 0), key + 1)
    if (places := sum(lengths.values())) > tree.DEEPEST * len(paths):
        return f"its {len(paths)} names stand in lists of {places} entries, most of them empty"
    return ""


def _box(chunk: ChunkStorageMetadata) -> Box:
    return tuple((start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
