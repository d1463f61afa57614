"""Weights in safetensors files: one, or several and an index where they are larger than one should be."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from gradwire.checkpoint.errors import DamagedCheckpoint, ExportError, StateTooLarge

SUFFIX = ".safetensors"
INDEX = ".safetensors.index.json"
LONGEST_INDEX = 100 * 2**20
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors")
_UNKNOWN = (torch.complex32, torch.complex128)


def write_files(
    weights: Mapping[str, Tensor], folder: Path, stem: str, largest: int, about: Mapping[str, str]
) -> list[Path]:
    """Write weights durably, as `<stem>.safetensors` or as `<stem>-00001-of-00002.safetensors`, … and an index.

    Args:
        weights: By name.
        folder: Where; what is there of these names is replaced.
        stem: Begins the files' names.
        largest: Bytes of a file, unless a single tensor has more.
        about: Texts for the files' headers.

    Raises:
        ExportError: safetensors is missing, or a tensor has a dtype that it does not know.
        OSError: a file could not be written.
    """
    save_file = _safetensors().torch.save_file
    for name, tensor in weights.items():
        if tensor.dtype in _UNKNOWN:
            raise ExportError(f"{name} is a tensor of {tensor.dtype}, which safetensors files cannot hold")
    groups = _dealt(weights, largest)
    files = [_file_name(stem, number, len(groups)) for number in range(1, len(groups) + 1)]
    for file, names in zip(files, groups, strict=True):
        # Pieces of one tensor and tied ones must not share memory there; whole tensors of their own are not copied.
        save_file(_apart({name: weights[name] for name in names}), folder / file, {"format": "pt", **about})
        sync(folder / file)
    if len(files) > 1:
        where = {name: file for file, names in zip(files, groups, strict=True) for name in names}
        total = sum(map(_size, weights.values()))
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        files.append(f"{stem}{INDEX}")
        write_json(folder / files[-1], index)
    return [folder / file for file in files]


def _dealt(weights: Mapping[str, Tensor], largest: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    size = 0
    for name, tensor in weights.items():
        if groups[-1] and size + _size(tensor) > largest:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += _size(tensor)
    return groups


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def _file_name(stem: str, number: int, count: int) -> str:
    return f"{stem}{SUFFIX}" if count == 1 else f"{stem}-{number:05}-of-{count:05}{SUFFIX}"


def _apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    seen: set[int] = set()
    apart = {}
    for name, tensor in weights.items():
        storage = tensor.untyped_storage()
        shared = storage.data_ptr() in seen or storage.nbytes() != _size(tensor) or not tensor.is_contiguous()
        apart[name] = tensor.detach().clone(memory_format=torch.contiguous_format) if shared else tensor.detach()
        seen.add(storage.data_ptr())
    return apart


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file durably."""
    path.write_text(json.dumps(values, indent=2) + "\n")
    sync(path)


def sync(path: Path) -> None:
    """Make a file or folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_files(path: Path) -> dict[str, Tensor]:
    """The weights of a safetensors file, of an index, or of a folder with either under the name `model`; on the CPU.

    Raises:
        ExportError: there is none, or safetensors is missing.
        DamagedCheckpoint: a file or the index contradicts itself.
        StateTooLarge: the weights do not fit into the memory that is free.
        OSError: a file could not be read.
    """
    found = _found(path)
    if not found.name.endswith(INDEX):
        return _read([(found, None)])
    places = _index(found)
    names: dict[str, list[str]] = {}
    for name, file in places.items():
        names.setdefault(file, []).append(name)
    return _read([(found.parent / file, sorted(expected)) for file, expected in sorted(names.items())])


def read_header_texts(path: Path) -> dict[str, str]:
    """The texts in the header of a safetensors file.

    Raises:
        ExportError: safetensors is missing.
        DamagedCheckpoint: the file contradicts itself.
    """
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            return dict(opened.metadata() or {})
    except safetensors.SafetensorError as error:
        raise DamagedCheckpoint(f"{path} is no sound safetensors file: {error}") from error


def _found(path: Path) -> Path:
    candidates = [path / f"model{SUFFIX}", path / f"model{INDEX}"] if path.is_dir() else [path]
    for candidate in candidates:
        if candidate.is_file() and candidate.name.endswith((SUFFIX, INDEX)):
            return candidate
    raise ExportError(
        f"{path} holds no weights: expected a file *{SUFFIX}, an index *{INDEX}, or a folder with model{SUFFIX} or "
        f"model{INDEX}"
    )


def _read(files: Sequence[tuple[Path, list[str] | None]]) -> dict[str, Tensor]:
    safetensors = _safetensors()
    _check_memory(file for file, _ in files)
    weights: dict[str, Tensor] = {}
    for file, expected in files:
        try:
            with safetensors.safe_open(file, framework="pt") as opened:  # proves that the header fits the file's length
                if expected is not None and sorted(opened.keys()) != expected:
                    raise DamagedCheckpoint(f"{file} holds other tensors than the index says")
                weights |= {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118 - no mapping
        except safetensors.SafetensorError as error:
            raise DamagedCheckpoint(f"{file} is no sound safetensors file: {error}") from error
    return weights


def _check_memory(files: Iterable[Path]) -> None:
    free = psutil.virtual_memory().available
    needed = 0
    for file in files:
        if not file.is_file():
            raise DamagedCheckpoint(f"{file} is missing, and the index names it")
        needed += file.stat().st_size
    if needed > free:
        raise StateTooLarge(f"the weights take {needed} bytes and {free} bytes of memory are free")


def _index(path: Path) -> dict[str, str]:
    if path.stat().st_size > LONGEST_INDEX:
        raise DamagedCheckpoint(f"{path} is longer than the {LONGEST_INDEX} bytes that an index may have")
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path} is not a valid index: {error}") from error
    places = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(places, dict) or not places:
        raise DamagedCheckpoint(f"{path} is not a valid index: it has no weight_map")
    for name, file in places.items():
        if not isinstance(file, str) or not _FILE.fullmatch(file):
            raise DamagedCheckpoint(f"{path}: {name[:80]} is in {str(file)[:80]!r}, which is no file beside the index")
    return places


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ExportError("safetensors files need the package safetensors: pip install 'gradwire[hf]'") from error
    return safetensors
