"""One rank's part of a snapshot: which tensors it has, in which packs they are, and the tree that they hang in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradwire.checkpoint import tree
from gradwire.checkpoint.document import FORMAT, Fields, dump, load
from gradwire.checkpoint.errors import DamagedCheckpoint
from gradwire.checkpoint.known import Known
from gradwire.checkpoint.packs import PackRef, PackWriter, read_tensors
from gradwire.checkpoint.store import Store, content_name
from gradwire.checkpoint.tensors import StoredTensor, check_storable

LONGEST_PART = 256 * 2**20


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
        tensors: Its tensors.
        shared: Node of the tree that all ranks share; on rank 0's part only.
        local: Node of the tree that is this rank's own.
    """

    rank: int
    packs: tuple[PackRef, ...]
    tensors: tuple[StoredTensor, ...]
    shared: Any
    local: Any


class PartWriter:
    """Writes one rank's part: packs first, then the part itself.

    Args:
        store: Where they go.
        rank: Whose part it is.
        known: What need not be written again.
    """

    def __init__(self, store: Store, rank: int, known: Known | None = None) -> None:
        self._store = store
        self._rank = rank
        self._known = known or Known()
        self._packs = PackWriter(store)
        self._tensors: list[Tensor] = []
        self._created: list[str] = []

    def write(
        self, shared: Mapping[str, Any] | None, local: Mapping[str, Any], owners: Sequence[int] | None = None
    ) -> PartRef:
        """Write the part.

        Args:
            shared: The state that all ranks share.
            local: This rank's own.
            owners: The rank that writes each tensor of the shared state; None where rank 0 writes all of them.

        Raises:
            UnsupportedState: something cannot be saved.
            StoreError: the store did not take it.
        """
        nodes = {
            "shared": None if shared is None or self._rank else tree.encode(shared, self._note, "shared"),
            "local": tree.encode(local, self._note, "local"),
        }
        stored = [self._packs.add(tensor) for tensor in self._tensors]
        self._packs.finish()
        data = dump(
            {
                "format": FORMAT,
                "kind": "part",
                "rank": self._rank,
                "packs": [pack.to_json() for pack in self._packs.packs],
                "tensors": [tensor.to_json() for tensor in stored],
                **nodes,
            }
        )
        part = PartRef(self._rank, content_name(data), len(data))
        if self._store.put_content("parts", data, part.digest):
            self._created.append(part.name)
        return part

    @property
    def written(self) -> int:
        """Bytes of the packs that are new in the store."""
        return sum(pack.size for pack in self._packs.packs if pack.name in self._packs.created)

    def committed(self) -> None:
        """Know what was written: the snapshot counts."""

    def discard(self) -> None:
        """Delete what was written; for a snapshot that is not committed and never will be.

        Raises:
            StoreError: something could not be deleted.
        """
        for name in (*self._created, *self._packs.created):
            self._store.delete(name)

    def _note(self, path: str, tensor: Tensor) -> int:
        check_storable(tensor, path)
        self._tensors.append(tensor)
        return len(self._tensors) - 1


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
    shared, local = fields.values.get("shared"), fields.values.get("local")
    return Part(fields.integer("rank"), packs, tensors, shared, local)


def load_tree(store: Store, part: Part, node: Any, where: str) -> Any:
    """The tree of one of a part's nodes, tensors read and verified.

    Raises:
        DamagedCheckpoint: the node is not valid, or a tensor's bytes are missing or altered.
        StateTooLarge: it does not fit into memory.
        StoreError: a pack could not be read.
    """
    used: dict[int, StoredTensor] = {}

    def note(index: int) -> Tensor:
        if not 0 <= index < len(part.tensors) or index in used:
            raise DamagedCheckpoint(f"{where}: tensor {index} does not exist or is used twice")
        used[index] = part.tensors[index]
        return Tensor()

    tree.decode(node, note, where)
    values = dict(zip(used, read_tensors(store, part.packs, list(used.values())), strict=True))
    return tree.decode(node, values.__getitem__, where)
