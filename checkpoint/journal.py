"""Entries of the journal: what one rank kept of one update, as an object of a store and back.

An entry is a sealed document in two lines (its header), the bytes of its tensors back to back, and the SHA-256 of all
that in a last line.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType

import psutil

from gradwire.checkpoint import tree
from gradwire.checkpoint.blobs import Blob, StoredBlob, check_blob, load_blob, prove_blob, store_blob
from gradwire.checkpoint.commit import seal
from gradwire.checkpoint.document import FORMAT, Fields, load
from gradwire.checkpoint.errors import DamagedCheckpoint, StateTooLarge, UnsupportedState

LONGEST_ENTRY = 4 * 2**30
LONGEST_HEADER = 16 * 2**20
MOST_RANKS = 10**6
_LONGEST_NAME = 1000
_SEAL = 65  # a SHA-256 in hexadecimal, and a line feed
_STATE_DIGEST = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"journal/([0-9]{20})/([0-9]{20})/([0-9]{20})-([0-9]{1,6})-of-([0-9]{1,6})")

Scalar = bool | int | float | str


@dataclass(frozen=True)
class Place:
    """Where an entry stands.

    Args:
        base: Number of the commit that was the newest when it was journalled.
        epoch: Of its writer.
        update: Which update it belongs to.
        rank: Whose it is.
        world_size: Number of ranks that journalled this update.
    """

    base: int
    epoch: int
    update: int
    rank: int
    world_size: int

    @property
    def name(self) -> str:
        return f"{journal_folder(self.base, self.epoch)}/{self.update:020d}-{self.rank}-of-{self.world_size}"

    @classmethod
    def of(cls, name: str) -> "Place":
        """The place that the name of an object of the journal tells.

        Raises:
            DamagedCheckpoint: it is none.
        """
        found = _NAME.fullmatch(name)
        if found is None:
            raise DamagedCheckpoint(f"{name[:200]!r} is not the name of an entry of a journal")
        return cls(*map(int, found.groups()))


def journal_folder(base: int, epoch: int) -> str:
    return f"journal/{base:020d}/{epoch:020d}"


@dataclass(frozen=True)
class Entry:
    """What one rank kept of one update.

    Args:
        place: Where it stands.
        scalars: Numbers, texts and truth values of the update, by name; floats keep their bits.
        tensors: Tensors of the update, by name.
        digest: xxh3-128 of the state after the update, 32 hexadecimal digits; None where it was not taken.
    """

    place: Place
    scalars: Mapping[str, Scalar]
    tensors: Mapping[str, Blob]
    digest: str | None = None


def check_entry(scalars: Mapping[str, Scalar], tensors: Mapping[str, Blob], digest: str | None) -> None:
    """Raise UnsupportedState unless an entry can hold this."""
    for name, value in scalars.items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            raise UnsupportedState(
                f"scalars must map names to numbers, texts or truth values, found {name!r}: {value!r}"
            )
    if digest is not None and not _STATE_DIGEST.fullmatch(digest):
        raise UnsupportedState(f"the digest of a state is 32 hexadecimal digits, found {digest[:80]!r}")
    for name, blob in tensors.items():
        if not isinstance(name, str) or len(name) > _LONGEST_NAME:
            raise UnsupportedState(f"tensors of an entry have names of at most {_LONGEST_NAME} characters")
        check_blob(name, blob)


def entry_bytes(entry: Entry) -> bytes:
    """The object that an entry is stored as.

    Raises:
        UnsupportedState: it cannot hold this, or is longer than an entry may be.
    """
    check_entry(entry.scalars, entry.tensors, entry.digest)
    stored = {name: store_blob(blob) for name, blob in entry.tensors.items()}
    header = seal(
        {
            "format": FORMAT,
            "kind": "journal",
            "base": entry.place.base,
            "epoch": entry.place.epoch,
            "update": entry.place.update,
            "rank": entry.place.rank,
            "world_size": entry.place.world_size,
            "scalars": {name: tree.encode_scalar(value, name) for name, value in entry.scalars.items()},
            "digest": entry.digest,
            "tensors": [{"name": name, **blob.to_json()} for name, (blob, _) in stored.items()],
        }
    )
    pieces: list[bytes | memoryview] = [header, *(piece for _, pieces in stored.values() for piece in pieces)]
    whole = hashlib.sha256()
    for piece in pieces:
        whole.update(piece)
    length = sum(len(piece) for piece in pieces) + _SEAL
    if len(header) > LONGEST_HEADER or length > LONGEST_ENTRY:
        raise UnsupportedState(
            f"the entry of update {entry.place.update} takes {length} bytes, {len(header)} of them its header; an "
            f"entry may take {LONGEST_ENTRY} and {LONGEST_HEADER}"
        )
    return b"".join([*pieces, whole.hexdigest().encode(), b"\n"])


def parse_journal_entry(data: bytes, place: Place, where: str) -> Entry:
    """The entry in `data`, its tensors decoded and proven by their digests.

    Args:
        data: The object.
        place: What its name says.
        where: Its name, for messages.

    Raises:
        DamagedCheckpoint: it is cut short, altered, misplaced or contradicts itself.
        UnsupportedFormat: it was written in a newer format.
        StateTooLarge: its tensors together do not fit into the memory that is free (nothing is allocated then).
    """
    fields, stored = _opened(data, place, where)
    needed, free = sum(blob.length for _, blob, _ in stored), psutil.virtual_memory().available
    if needed > free:
        raise StateTooLarge(f"{where} takes {needed} bytes and {free} bytes of memory are free")
    tensors = {name: load_blob(blob, piece, f"{where}, {name}") for name, blob, piece in stored}
    return Entry(place, _scalars(fields), MappingProxyType(tensors), _state_digest(fields))


def prove_journal_entry(data: bytes, place: Place, where: str) -> None:
    """Prove the entry in `data` as `parse_journal_entry` does, in the memory of one chunk of a tensor.

    Raises:
        DamagedCheckpoint, UnsupportedFormat: as there.
    """
    fields, stored = _opened(data, place, where)
    _scalars(fields), _state_digest(fields)
    for name, blob, piece in stored:
        prove_blob(blob, piece, f"{where}, {name}")


def _opened(data: bytes, place: Place, where: str) -> tuple[Fields, list[tuple[str, StoredBlob, memoryview]]]:
    """The header of an entry, and of each of its tensors name, description and stored bytes."""
    whole = memoryview(data)
    end = max(len(data) - _SEAL, 0)
    if _digest_line(whole[:end]) != data[end:]:
        raise DamagedCheckpoint(f"{where} is cut short or altered: its digest does not fit")
    header = max(data.find(b"\n", 0, min(LONGEST_HEADER, end)), 0)
    payload = header + 1 + _SEAL
    if payload > end or _digest_line(whole[:header]) != data[header + 1 : payload]:
        raise DamagedCheckpoint(f"{where} has no sealed header")
    fields = load(data[:header], where)
    if fields.text("kind") != "journal":
        raise fields.damaged("kind", "expected 'journal'")
    if (found := _place(fields)) != place:
        raise DamagedCheckpoint(f"{where} holds the entry of {found}")
    return fields, _stored(fields, whole[payload:end])


def _digest_line(data: memoryview) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + b"\n"


def _place(fields: Fields) -> Place:
    world_size = fields.integer("world_size", 1, MOST_RANKS - 1)
    return Place(
        fields.integer("base", 1),
        fields.integer("epoch", 1),
        fields.integer("update", 1),
        fields.integer("rank", 0, world_size - 1),
        world_size,
    )


def _scalars(fields: Fields) -> Mapping[str, Scalar]:
    nodes = fields.fields("scalars")
    values = {name: tree.decode_scalar(node, f"{nodes.where}, {name}") for name, node in nodes.values.items()}
    for name, value in values.items():
        if value is None:
            raise nodes.damaged(name, "expected a value")
    return MappingProxyType(values)


def _state_digest(fields: Fields) -> str | None:
    if fields.values.get("digest", "") is None:
        return None
    digest = fields.text("digest")
    if not _STATE_DIGEST.fullmatch(digest):
        raise fields.damaged("digest", "expected 32 hexadecimal digits")
    return digest


def _stored(fields: Fields, payload: memoryview) -> list[tuple[str, StoredBlob, memoryview]]:
    entries = [Fields.of(value, f"{fields.where}, tensors") for value in fields.list("tensors")]
    stored = [(entry.text("name", _LONGEST_NAME), StoredBlob.from_json(entry)) for entry in entries]
    if len({name for name, _ in stored}) != len(stored):
        raise DamagedCheckpoint(f"{fields.where} has two tensors of one name")
    if sum(blob.stored for _, blob in stored) != len(payload):
        raise DamagedCheckpoint(f"{fields.where}: its tensors do not take up its {len(payload)} bytes")
    ends = [*accumulate((blob.stored for _, blob in stored), initial=0)]
    return [(name, blob, payload[start:end]) for (name, blob), (start, end) in zip(stored, pairwise(ends), strict=True)]
