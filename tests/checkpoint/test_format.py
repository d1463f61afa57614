"""Another reader, written from docs/store-format.md alone."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
import zstandard

from gradwire.checkpoint import Checkpointer, State
from gradwire.checkpoint.snapshot import PartWriter
from gradwire.checkpoint.store import Store
from tests.checkpoint.states import state_at


def sealed(path: Path) -> dict[str, Any]:
    document, digest, end = path.read_bytes().split(b"\n")
    assert (hashlib.sha256(document).hexdigest(), end) == (digest.decode(), b"")
    return json.loads(document)  # type: ignore[no-any-return]


def newest_commit(store: Path) -> dict[str, Any]:
    documents = [sealed(path) for path in sorted((store / "commits").iterdir())]
    return [document for document in documents if document["kind"] == "commit"][-1]


def read_part(store: Path, digest: str) -> dict[str, Any]:
    data = (store / "parts" / digest).read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest
    return json.loads(data)  # type: ignore[no-any-return]


def read_tensor(store: Path, part: dict[str, Any], index: int) -> tuple[str, np.ndarray[Any, Any]]:
    """The dtype, and the elements' bytes: [elements, bytes of an element]."""
    entry = part["tensors"][index]
    size = getattr(torch, entry["dtype"]).itemsize
    whole = b""
    for pack_index, offset, stored, length, coding, digest in entry["chunks"]:
        pack = part["packs"][pack_index]
        data = (store / "packs" / pack["sha256"]).read_bytes()
        assert (len(data), xxhash.xxh3_128_hexdigest(data)) == (pack["size"], pack["xxh3"])
        data = data[offset : offset + stored]
        if coding == "planes+zstd":
            planes = zstandard.ZstdDecompressor().decompress(data)
            data = b"".join(bytes(planes[element :: length // size]) for element in range(length // size))
        assert (len(data), xxhash.xxh3_128_hexdigest(data)) == (length, digest)
        whole += data
    return entry["dtype"], np.frombuffer(whole, np.uint8).reshape(-1, size)


def read_node(node: Any, tensor: Any) -> Any:
    if isinstance(node, list):
        return [read_node(each, tensor) for each in node]
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "dict":
        return {key: read_node(each, tensor) for key, each in value}
    read = {"tensor": tensor, "float": float, "int": lambda text: int(text, 16)}
    return tuple(read_node(each, tensor) for each in value) if kind == "tuple" else read[kind](value)


def read_trees(store: Path, parts: list[dict[str, Any]]) -> tuple[Any, list[Any]]:
    places = {number: (part, index) for part in parts for index, number in enumerate(part["shared_tensors"])}
    shared = read_node(parts[0]["shared"], lambda number: read_tensor(store, *places[number]))
    return shared, [
        read_node(part["local"], lambda index, part=part: read_tensor(store, part, index)) for part in parts
    ]


def bare(node: Any) -> Any:
    """A tree with its tensors as the reader gives them."""
    if isinstance(node, torch.Tensor):
        data = node.contiguous().reshape(-1).view(torch.uint8).reshape(-1, node.dtype.itemsize).numpy()
        return str(node.dtype).removeprefix("torch."), data
    if isinstance(node, dict):
        return {key: bare(value) for key, value in node.items()}
    return type(node)(map(bare, node)) if isinstance(node, list | tuple) else node


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return type(first) is type(second) and all(map(equal, first, second)) and len(first) == len(second)
    return bool(first == second)


def test_a_snapshot_can_be_read_from_the_description_alone(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    for update in (1, 2):
        checkpointer.save(state_at(update), {"updates": update})
    commit = newest_commit(tmp_path)
    assert commit["clock"] == {"updates": 2}
    shared, (local,) = read_trees(tmp_path, [read_part(tmp_path, part["sha256"]) for part in commit["parts"]])
    assert equal(shared, bare(state_at(2).shared))
    assert equal(local, bare(state_at(2).local))


def test_a_snapshot_that_ranks_have_shared_out_can_be_read_from_the_description_alone(tmp_path: Path) -> None:
    state = State(
        state_at(1, 300_000).shared,
        {"own": torch.arange(5, dtype=torch.int16), "few": torch.arange(9000) % 7, "big": 2**60},
    )
    writers = [PartWriter(Store.open(str(tmp_path)), rank) for rank in range(2)]
    refs = [writer.write(state.shared, state.local, owners=[1, 1, 0, 1, 0]) for writer in writers]
    parts = [read_part(tmp_path, ref.digest) for ref in refs]
    assert [part["shared_tensors"] for part in parts] == [[2, 4], [0, 1, 3]]
    assert {chunk[4] for part in parts for entry in part["tensors"] for chunk in entry["chunks"]} == {
        "raw",
        "planes+zstd",
    }
    shared, locals_ = read_trees(tmp_path, parts)
    assert equal(shared, bare(state.shared))
    assert equal(locals_, [bare(state.local)] * 2)
