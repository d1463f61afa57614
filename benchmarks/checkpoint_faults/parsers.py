"""Everything that reads what comes back from a store, as functions of bytes: for fuzzing.

A parser returns or raises a CheckpointError, whatever it is given. Documents that carry a digest of their own get a
fitting one here, because otherwise no parser would ever see what is wrong with the rest.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from torch import Tensor

from benchmarks.checkpoint_faults.contenders import FOLDER
from benchmarks.checkpoint_faults.disk import Contents, Disk
from benchmarks.checkpoint_faults.gradwire_sessions import on_disk
from gradwire.checkpoint import CheckpointError, tree
from gradwire.checkpoint.coding import decode, encode
from gradwire.checkpoint.commit import parse_entry
from gradwire.checkpoint.document import load
from gradwire.checkpoint.journal import Entry, Place, entry_bytes, parse_journal_entry
from gradwire.checkpoint.loading import load_tree
from gradwire.checkpoint.local import LocalObjects
from gradwire.checkpoint.snapshot import local_places, parse_part, shared_places
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tag, parse_tag

WHERE = "the object"
PLACE = Place(base=1, epoch=2, update=3, rank=0, world_size=1)


def sealed(document: bytes) -> bytes:
    """A document with the digest of its line in a second one."""
    return b"%s\n%s\n" % (document, hashlib.sha256(document).hexdigest().encode())


def sealed_entry(data: bytes) -> bytes:
    """An entry of a journal: a header and a payload, divided by the first line feed, with fitting digests."""
    header, _, payload = data.partition(b"\n")
    whole = sealed(header) + payload
    return b"%s%s\n" % (whole, hashlib.sha256(whole).hexdigest().encode())


def _part(data: bytes) -> None:
    part = parse_part(data, WHERE)
    for node in (part.shared, part.local):
        tree.decode(node, lambda index: Tensor(), WHERE)


def _read(data: bytes) -> None:
    """A part and the tensors that it names, in a store with the packs of the valid ones."""
    part = parse_part(data, WHERE)
    store = _store()
    load_tree(store, shared_places([part], WHERE), part.shared, WHERE)
    load_tree(store, local_places(part), part.local, WHERE)


@cache
def _store() -> Store:
    return Store("simulated", LocalObjects(FOLDER, Disk(_two_snapshots())))


@cache
def _two_snapshots() -> Contents:
    contents = Contents.with_folder(str(FOLDER))
    session = on_disk(Disk(contents))
    for update in (1, 2):
        session.save(update)
    return contents


def _coded(data: bytes) -> None:
    decode(data, 4, 1 << 12)


TARGETS: Mapping[str, Callable[[bytes], Any]] = MappingProxyType(
    {
        "document": lambda data: load(data, WHERE),
        "commit": lambda data: parse_entry(data, 3, WHERE),
        "sealed commit": lambda data: parse_entry(sealed(data), 3, WHERE),
        "part": _part,
        "tensors of a part": _read,
        "tag": lambda data: parse_tag(sealed(data), "best", WHERE),
        "journal": lambda data: parse_journal_entry(data, PLACE, WHERE),
        "sealed journal": lambda data: parse_journal_entry(sealed_entry(data), PLACE, WHERE),
        "name in the journal": lambda data: Place.of(data.decode("utf-8", "replace")),
        "coded chunk": _coded,
    }
)


def try_parser(name: str, data: bytes) -> bool:
    """Whether a parser took the data; any error but a CheckpointError comes out."""
    try:
        TARGETS[name](data)
    except CheckpointError:
        return False
    return True


DOCUMENTS = ("document", "sealed commit", "part", "tensors of a part", "tag", "sealed journal")


def alter(node: Any, choose: Callable[[int], int], value: Callable[[], Any]) -> None:
    """Replace, remove or repeat something somewhere in a JSON value.

    Args:
        node: An object or a list; changed.
        choose: A number below the one given.
        value: A JSON value to put there.
    """
    while node:
        key = [*(node if isinstance(node, dict) else range(len(node)))][choose(len(node))]
        if isinstance(node[key], dict | list) and node[key] and choose(2):
            node = node[key]
            continue
        change = choose(3)
        if change == 0:
            node[key] = value()
        elif change == 1:
            del node[key]
        elif isinstance(node, list):
            node.append(node[key])
        return


def altered(data: bytes, changes: int, choose: Callable[[int], int], value: Callable[[], Any]) -> bytes:
    """A document, the first line of the data, with so many alterations."""
    header, feed, rest = data.partition(b"\n")
    document = json.loads(header)
    for _ in range(changes):
        alter(document, choose, value)
    return json.dumps(document).encode() + feed + rest


def seeds() -> dict[str, list[bytes]]:
    """Valid data for each parser, as mutations begin with."""
    contents = _two_snapshots()
    found: dict[str, list[bytes]] = {"commits": [], "parts": []}
    for path, inode in sorted(contents.names.items()):
        folder = path.removeprefix(f"{FOLDER}/").partition("/")[0]
        if inode and folder in found:
            found[folder].append(contents.files[inode].data)
    commits = [data for data in found["commits"] if json.loads(data.split(b"\n")[0])["sequence"] == 3]
    tag = Tag("best", 3, "0" * 64, "2026-01-01T00:00:00.000+00:00").to_bytes()
    entry = entry_bytes(Entry(PLACE, {"lr": 0.1, "skipped": False}, {}, "0" * 32))
    return {
        "document": found["parts"],
        "commit": commits,
        "sealed commit": [data.split(b"\n")[0] for data in commits],
        "part": found["parts"],
        "tensors of a part": found["parts"],
        "tag": [tag.split(b"\n")[0]],
        "journal": [entry],
        "sealed journal": [entry.split(b"\n")[0] + b"\n"],
        "name in the journal": [PLACE.name.encode()],
        "coded chunk": [encode(memoryview(bytes(1 << 12)), item_size) or b"" for item_size in (1, 2, 4, 8)],
    }
