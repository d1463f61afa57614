"""One rank's part of a snapshot: which tensors it has, in which packs they are, and the tree that they hang in."""

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from gradwire.checkpoint import tree
from gradwire.checkpoint.coding import Worth
from gradwire.checkpoint.document import FORMAT, Fields, dump, load
from gradwire.checkpoint.errors import DamagedCheckpoint
from gradwire.checkpoint.known import Known
from gradwire.checkpoint.packs import SALT, PackRef, PackWriter
from gradwire.checkpoint.sharded import Slice
from gradwire.checkpoint.store import Store, content_name
from gradwire.checkpoint.tensors import StoredTensor, check_storable

LONGEST_PART = 256 * 2**20
_READERS = 8  # threads, because an object store takes its time to answer


@dataclass(frozen=True)
class PartRef:
    """A part, as a commit names it.

    Args:
        rank: Whose it is.
        digest: SHA-256 of its bytes, which names it.
        size: Its bytes.
    """

    rank: int
    digest: str
    size: int

    @property
    def name(self) -> str:
        return f"parts/{self.digest}"

    def to_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "sha256": self.digest, "size": self.size}

    @classmethod
    def from_json(cls, fields: Fields) -> "PartRef":
        return cls(fields.integer("rank"), fields.sha256("sha256"), fields.integer("size", 1, LONGEST_PART))


@dataclass(frozen=True)
class Part:
    """A part's content.

    Args:
        rank: Whose it is.
        packs: The packs that it uses.
        tensors: Its tensors; those of the shared tree come first.
        shared_tensors: Which tensors of the shared tree those are: their numbers, rising.
        shared: Node of the tree that all ranks share; on rank 0's part only.
        local: Node of the tree that is this rank's own.
    """

    rank: int
    packs: tuple[PackRef, ...]
    tensors: tuple[StoredTensor, ...]
    shared_tensors: tuple[int, ...]
    shared: Any
    local: Any

    def to_bytes(self) -> bytes:
        """The part's object; never the same twice, so that no clean-up of what others left can mean this one."""
        return dump(
            {
                "format": FORMAT,
                "kind": "part",
                "salt": secrets.token_hex(SALT),
                "rank": self.rank,
                "packs": [pack.to_json() for pack in self.packs],
                "tensors": [tensor.to_json() for tensor in self.tensors],
                "shared_tensors": list(self.shared_tensors),
                "shared": self.shared,
                "local": self.local,
            }
        )


Places = Mapping[int, tuple[Part, int]]
"""For each tensor node's number, the part that has the tensor, and the tensor's index there."""


class PartWriter:
    """Writes one rank's part: packs first, then the part itself.

    Args:
        store: Where they go.
        rank: Whose part it is.
        known: What need not be written again.
        worth: As in PackWriter.
    """

    def __init__(self, store: Store, rank: int, known: Known | None = None, worth: Worth | None = None) -> None:
        self._store = store
        self._rank = rank
        self._known = known or Known()
        self._packs = PackWriter(store, self._known, worth)
        self._part: Part | None = None
        self._created: list[str] = []

    def write(
        self, shared: Mapping[str, Any] | None, local: Mapping[str, Any], owners: Sequence[int] | None = None
    ) -> PartRef:
        """Write the part.

        Args:
            shared: The state that all ranks share; None where other ranks write all of it.
            local: This rank's own.
            owners: The rank that writes each tensor (and slice) of the shared state; None where rank 0 writes all.

        Raises:
            UnsupportedState: something cannot be saved.
            StoreError: the store did not take it.
        """
        tree_ = Gathered("shared", shared if self._rank == 0 or owners is not None else {})
        mine = [
            number for number in range(len(tree_.tensors)) if (0 if owners is None else owners[number]) == self._rank
        ]
        own = Gathered("local", local, first=len(mine))
        self._known.check(self._store)
        try:
            stored = [self._packs.add(tensor) for tensor in (*(tree_.tensors[number] for number in mine), *own.tensors)]
            packs = self._packs.finish()
        finally:
            self._created += self._packs.close()
        node = tree_.node if self._rank == 0 and shared is not None else None
        self._part = Part(self._rank, tuple(packs), tuple(stored), tuple(mine), node, own.node)
        data = self._part.to_bytes()
        ref = PartRef(self._rank, content_name(data), len(data))
        if self._store.put_content("parts", data, ref.digest):
            self._created.append(ref.name)
        return ref

    @property
    def written(self) -> int:
        """Bytes of the packs that are new in the store."""
        packs = () if self._part is None else self._part.packs
        return sum(pack.size for pack in packs if pack.name in self._created)

    def committed(self) -> None:
        """Know what was written: the snapshot counts."""
        if self._part is not None:
            self._known.replace([self._part])

    def discard(self) -> None:
        """Delete what was written; for a snapshot that is not committed and never will be.

        Raises:
            StoreError: something could not be deleted.
        """
        for name in self._created:
            self._store.delete(name)


class Gathered:
    """A tree's tensors, in the order in which its node numbers them.

    Slices of tensors are among them, each with the rank that saves it in `owners`, where others have None.

    Args:
        name: Of the tree, for messages.
        tree_: The tree.
        first: The first number.

    Raises:
        UnsupportedState: something in it cannot be saved.
    """

    def __init__(self, name: str, tree_: Any, first: int = 0) -> None:
        self.tensors: list[Tensor] = []
        self.paths: list[str] = []
        self.owners: list[int | None] = []
        self._first = first
        self.node = tree.encode(tree_, self._note, name)

    def _note(self, path: str, found: Tensor | Slice) -> int:
        tensor, owner = (found.data, found.rank) if isinstance(found, Slice) else (found, None)
        if owner is None or not tensor.is_meta:
            check_storable(tensor, path)
        self.tensors.append(tensor)
        self.paths.append(path)
        self.owners.append(owner)
        return self._first + len(self.tensors) - 1


def read_part(store: Store, ref: PartRef) -> Part:
    """A part, its bytes proven by their SHA-256 and its entries checked against each other.

    Raises:
        DamagedCheckpoint: it is missing, altered, or contradicts itself.
        UnsupportedFormat: it was written in a newer format.
        StoreError: it could not be read.
    """
    where = f"{store.url}: {ref.name}"
    data = store.get(ref.name, ref.size)
    if content_name(data) != ref.digest:
        raise DamagedCheckpoint(f"{where} is altered: its bytes do not have the digest that names it")
    part = parse_part(data, where)
    if part.rank != ref.rank:
        raise DamagedCheckpoint(f"{where} is of rank {part.rank}, and the commit says rank {ref.rank}")
    return part


def parse_part(data: bytes, where: str) -> Part:
    """The part in `data`.

    Raises:
        DamagedCheckpoint: it is not valid.
        UnsupportedFormat: it was written in a newer format.
    """
    fields = load(data, where)
    if fields.text("kind") != "part":
        raise fields.damaged("kind", "expected 'part'")
    packs: tuple[PackRef, ...] = fields.each("packs", PackRef.from_json)
    sizes = tuple(pack.size for pack in packs)
    tensors = fields.each("tensors", lambda entry: StoredTensor.from_json(entry, sizes))
    numbers = fields.list("shared_tensors", len(tensors))
    if not all(type(number) is int for number in numbers) or any(a >= b for a, b in pairwise([-1, *numbers])):
        raise fields.damaged("shared_tensors", "expected rising numbers")
    shared, local = fields.values.get("shared"), fields.values.get("local")
    return Part(fields.integer("rank"), packs, tensors, tuple(numbers), shared, local)


def read_parts(store: Store, refs: Sequence[PartRef]) -> list[Part]:
    """Several parts; errors as in `read_part`."""
    with ThreadPoolExecutor(_READERS) as threads:
        return list(threads.map(lambda ref: read_part(store, ref), refs))


def shared_places(parts: Sequence[Part], where: str) -> Places:
    """Where the tensors of the shared tree are.

    Args:
        parts: All parts of a snapshot, in order of rank.
        where: What is read, for messages.

    Raises:
        DamagedCheckpoint: a tensor is in two parts.
    """
    places: dict[int, tuple[Part, int]] = {}
    for part in parts:
        for index, number in enumerate(part.shared_tensors):
            if number in places:
                raise DamagedCheckpoint(f"{where}: tensor {number} of the shared state is in two parts")
            places[number] = (part, index)
    return places


def local_places(part: Part) -> Places:
    """Where the tensors of a rank's own tree are."""
    return {index: (part, index) for index in range(len(part.shared_tensors), len(part.tensors))}
