"""A snapshot's weights for other programs: a safetensors file, or a folder as Hugging Face's libraries read it."""

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.checkpoint.errors import ExportError, UnsupportedState
from gradwire.checkpoint.safetensors_files import SUFFIX, read_files, sync, write_files, write_json
from gradwire.checkpoint.weights import load_weights

LARGEST = 5 * 10**9
CONFIG = "config.json"


@dataclass(frozen=True)
class Rows:
    """Where a tensor of a folder comes from.

    Args:
        source: The tensor's name in the snapshot.
        start: First of its rows (along its first axis).
        stop: End of them; None for all rows from `start` on.
        period: Rows after which the same begins again; None where all rows are one stretch.
    """

    source: str
    start: int = 0
    stop: int | None = None
    period: int | None = None


@dataclass(frozen=True)
class HuggingFace:
    """What a Hugging Face folder calls the weights, and what it says of the model.

    Args:
        names: For each tensor of the folder, where it comes from. Rows of one tensor make it up in their order.
        config: What config.json says.
        tied: Tensors of the snapshot that are left out because they equal another one of it, which is the value.
        files: What else stands in the folder, by name.
        stem: Begins the names of the files with weights.
        config_name: What config.json is called.
    """

    names: Mapping[str, Rows]
    config: Mapping[str, Any]
    tied: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    stem: str = "model"
    config_name: str = CONFIG


def export(
    url: str | os.PathLike[str],
    update: int | None,
    path: str | os.PathLike[str],
    layout: HuggingFace | None = None,
    *,
    largest: int = LARGEST,
) -> tuple[Path, ...]:
    """Write a snapshot's weights, every byte verified as it was read; the files, all durable.

    A file or a folder appears whole under its name or not at all; of several files the index comes last.

    Args:
        url: A store, or a run directory with one in `checkpoints`. What torch.distributed.checkpoint saved must hold
            the weights under `model`.
        update: Which snapshot; None for the newest whole one.
        path: A file `*.safetensors` that is to be; with a layout, a folder.
        layout: None for a file with the snapshot's own names.
        largest: Bytes of a file; larger weights are split over several, beside an index.

    Raises:
        ExportError: the path exists or has another suffix, the layout does not fit the weights, or safetensors is
            missing.
        CheckpointError: as `load_weights`.
        OSError: the files could not be written.
    """
    target = Path(path)
    _check_target(target, layout)
    weights, reached = read_weights(url, update)
    return export_weights(weights, target, layout, largest=largest, about={"update": str(reached)})


def export_weights(
    weights: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    layout: HuggingFace | None = None,
    *,
    largest: int = LARGEST,
    about: Mapping[str, str] | None = None,
) -> tuple[Path, ...]:
    """Write weights by name, as `export` does; `about` are texts for the files' headers."""
    target = Path(path)
    _check_target(target, layout)
    if layout is None:
        return _write_beside(weights, target, largest, about or {})
    renamed = rename(weights, layout)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(target) as folder:
        written = write_files(renamed, folder, layout.stem, largest, about or {})
        write_json(folder / layout.config_name, layout.config)
        for name, content in layout.files.items():
            (folder / name).write_bytes(content)
            sync(folder / name)
        sync(folder)
        if target.exists():
            target.rmdir()  # it is empty
        folder.rename(target)
    sync(target.parent)
    return tuple(target / name for name in (layout.config_name, *(file.name for file in written), *layout.files))


def read_weights(url: str | os.PathLike[str], update: int | None) -> tuple[dict[str, Tensor], int]:
    """A snapshot's weights by name, also those that torch.distributed.checkpoint saved, and of which update they are.

    Raises:
        CheckpointError: as `load_weights`.
    """
    place = os.fspath(url)
    try:
        weights, commit = load_weights(place, update)
    except UnsupportedState:
        from gradwire.checkpoint.dcp.weights import load_sharded_weights

        weights, commit = load_sharded_weights(place, update)
    return weights, commit.update


def import_weights(path: str | os.PathLike[str], layout: HuggingFace | None = None) -> dict[str, Tensor]:
    """The weights of a safetensors file, of its index, or of a Hugging Face folder, by name.

    Args:
        path: The file, the index or the folder.
        layout: Gives the tensors of a folder the names that they have in a snapshot; None leaves them theirs.

    Raises:
        ExportError: there are no weights, the layout does not fit them, or safetensors is missing.
        DamagedCheckpoint: a file contradicts itself.
        StateTooLarge: they do not fit into the memory that is free.
        OSError: a file could not be read.
    """
    found = read_files(Path(path))
    return found if layout is None else name_back(found, layout)


def rename(weights: Mapping[str, Tensor], layout: HuggingFace) -> dict[str, Tensor]:
    """The weights as the layout calls them.

    Raises:
        ExportError: the layout does not fit them.
    """
    used = {rows.source for rows in layout.names.values()}
    _expect("the snapshot", weights.keys(), used | layout.tied.keys())
    for name, other in layout.tied.items():
        if not _equal(weights[name], weights[other]):
            raise ExportError(f"{name} should equal {other}, with which it is tied, and does not")
    renamed, covered = {}, dict.fromkeys(used, 0)
    for name, rows in layout.names.items():
        tensor = weights[rows.source]
        if rows.start == 0 and rows.stop is None:
            renamed[name] = tensor
            continue
        period = _period(rows, tensor)
        stop = period if rows.stop is None else rows.stop
        if rows.start != covered[rows.source] or not rows.start < stop <= period or tensor.shape[0] % period:
            raise ExportError(f"{name} should be {_shown(rows, stop)} of {rows.source} {tuple(tensor.shape)}")
        renamed[name] = tensor.reshape(-1, period, *tensor.shape[1:])[:, rows.start : stop].flatten(0, 1)
        covered[rows.source] = stop
    _expect_all_rows(weights, layout, covered)
    return renamed


def _expect_all_rows(weights: Mapping[str, Tensor], layout: HuggingFace, covered: Mapping[str, int]) -> None:
    for rows in layout.names.values():
        stop, tensor = covered[rows.source], weights[rows.source]
        if stop and stop != _period(rows, tensor):
            raise ExportError(f"the layout leaves out the rows of {rows.source} {tuple(tensor.shape)} from {stop} on")


def _period(rows: Rows, tensor: Tensor) -> int:
    return (tensor.shape[0] if tensor.dim() else 0) if rows.period is None else rows.period


def _shown(rows: Rows, stop: int) -> str:
    each = "" if rows.period is None else f" of every {rows.period}"
    return f"rows {rows.start} to {stop}{each}"


def name_back(weights: Mapping[str, Tensor], layout: HuggingFace) -> dict[str, Tensor]:
    """The weights of a folder with the names of a snapshot: the inverse of `rename`.

    Raises:
        ExportError: the layout does not fit them.
    """
    _expect("the folder", weights.keys(), layout.names.keys())
    named: dict[str, Tensor] = {}
    pieces: dict[str, list[Tensor]] = {}
    for name, rows in layout.names.items():
        found, taken = weights[name], None if rows.stop is None else rows.stop - rows.start
        length = found.shape[0] if found.dim() else 0
        if taken is not None and (length % taken if rows.period else length != taken):
            raise ExportError(f"{name} has {length} rows, and {rows.source} takes {taken}: other sizes of the model")
        if taken is None:
            named[rows.source] = found
        else:
            pieces.setdefault(rows.source, []).append(found.reshape(-1, taken, *found.shape[1:]))
    named |= {source: _together(source, each) for source, each in pieces.items()}
    return named | {name: named[other] for name, other in layout.tied.items()}


def _together(source: str, pieces: list[Tensor]) -> Tensor:
    """A tensor of the snapshot: pieces [periods, rows, …] side by side."""
    if len({len(piece) for piece in pieces}) > 1:
        raise ExportError(f"what makes up {source} repeats {sorted({len(piece) for piece in pieces})} times")
    return torch.cat(pieces, 1).flatten(0, 1)


def _expect(what: str, found: Any, expected: Any) -> None:
    for problem, names in (("lacks", expected - found), ("has no place in the layout for", found - expected)):
        if names:
            some = ", ".join(sorted(names)[:5])
            raise ExportError(f"{what} {problem} {len(names)} tensors of the model: {some}")


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and torch.equal(first, second)


def _check_target(target: Path, layout: HuggingFace | None) -> None:
    if layout is None and target.suffix != SUFFIX:
        raise ExportError(f"{target}: a file of weights is called *{SUFFIX}")
    if target.exists() and not (layout is not None and target.is_dir() and not any(target.iterdir())):
        raise ExportError(f"{target} exists already: remove it, or choose another name")


def _write_beside(
    weights: Mapping[str, Tensor], target: Path, largest: int, about: Mapping[str, str]
) -> tuple[Path, ...]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(target) as folder:
        written = write_files(weights, folder, target.name.removesuffix(SUFFIX), largest, about)
        placed = tuple(target.parent / file.name for file in written)
        for there in placed:
            if there.exists():
                raise ExportError(f"{there} exists already: remove it, or choose another name")
        for file, there in zip(written, placed, strict=True):  # the index last
            file.rename(there)
    sync(target.parent)
    return placed


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A folder beside the target, gone afterwards."""
    folder = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
