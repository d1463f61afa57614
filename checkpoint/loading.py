"""Reading the tree of a snapshot: all of it, or of sharded tensors what is wanted."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gradwire.checkpoint import tree
from gradwire.checkpoint.errors import DamagedCheckpoint
from gradwire.checkpoint.packs import PackRef
from gradwire.checkpoint.sharded import Box, Cut, Wanted, assembled, not_made_up, overlaps
from gradwire.checkpoint.snapshot import Places
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import StoredTensor
from gradwire.checkpoint.tree import Begins, Path
from gradwire.checkpoint.unpacking import read_scattered


def load_tree(store: Store, places: Places, node: Any, where: str, wanted: Wanted | None = None) -> Any:
    """The tree of a node, tensors read and verified.

    Args:
        store: Where they are.
        places: Where the tensors of the tree are, by number.
        node: The node.
        where: What is read, for messages.
        wanted: Which box of a tensor in slices is wanted; other slices are not read. All of it where None.

    Raises:
        DamagedCheckpoint: the node is not valid, or a tensor's bytes are missing or altered.
        StateTooLarge: it does not fit into memory.
        StoreError: a pack could not be read.
    """
    return _load(store, _needed(places, node, where, wanted), node, where)


def load_whole_tree(
    store: Store, places: Places, node: Any, where: str, wanted: Wanted | None = None
) -> dict[str, Any]:
    """All of a snapshot's shared tree, or of a rank's own; arguments and errors as in `load_tree`.

    It is a dict, and has all the tensors that there are places of.
    """
    needed = _needed(places, node, where, wanted)
    needed.check_whole(node)
    tree_: dict[str, Any] = _load(store, needed, node, where)
    return tree_


def check_tree(places: Places, node: Any, where: str) -> None:
    """Raise DamagedCheckpoint where `load_whole_tree` would whatever the tensors' bytes are; nothing is read."""
    _needed(places, node, where).check_whole(node)


def _load(store: Store, needed: "_Needed", node: Any, where: str) -> Any:
    values = dict(zip(needed.of, read_scattered(store, list(needed.of.values())), strict=True))

    def join(path: Path, shape: tuple[int, ...], begins: Begins) -> Tensor | Cut:
        box = needed.box(path, shape)
        dtype = needed.stored(begins[0][1]).dtype
        parts = [(offsets, values[number]) for offsets, number in begins if number in values]
        data = assembled(_whole(shape) if box is None else box, dtype, parts)
        return data if box is None else Cut(shape, box, data)

    return tree.decode(node, values.__getitem__, where, join)


def _needed(places: Places, node: Any, where: str, wanted: Wanted | None = None) -> "_Needed":
    needed = _Needed(places, where, wanted)
    tree.decode(node, needed.tensor, where, needed.slices)
    return needed


class _Needed:
    """Which tensors a tree needs, each once.

    Attributes:
        of: By number, the packs that it may lie in, and where.
    """

    def __init__(self, places: Places, where: str, wanted: Wanted | None) -> None:
        self._places = places
        self._where = where
        self._wanted = wanted
        self._seen: set[int] = set()
        self.of: dict[int, tuple[Sequence[PackRef], StoredTensor]] = {}

    def check_whole(self, node: Any) -> None:
        """Raise DamagedCheckpoint unless the node that was gone through is that of a dict with all tensors."""
        if not isinstance(node, dict) or "dict" not in node:
            raise DamagedCheckpoint(f"{self._where}: the tree is not a dict")
        if left := len(self._places) - len(self._seen):
            raise DamagedCheckpoint(f"{self._where}: {left} tensors stand nowhere in the tree")

    def stored(self, number: int) -> StoredTensor:
        part, index = self._places[number]
        return part.tensors[index]

    def box(self, path: Path, shape: tuple[int, ...]) -> Box | None:
        """What is wanted of a tensor in slices; None for all."""
        return None if self._wanted is None else self._wanted(path, shape)

    def tensor(self, number: int) -> Tensor:
        """A tensor of the tree."""
        self._see(number)
        self._need(number)
        return Tensor()

    def slices(self, path: Path, shape: tuple[int, ...], begins: Begins) -> Tensor:
        """A tensor in slices, of which those are needed that the wanted box has elements of."""
        for _, number in begins:
            self._see(number)
        stored = [(offsets, self.stored(number)) for offsets, number in begins]
        odd = any(len(each.shape) != len(offsets) or each.dtype != stored[0][1].dtype for offsets, each in stored)
        boxes = [_box(offsets, each.shape) for offsets, each in stored]
        reason = "its slices are of different types or shapes" if odd or not stored else not_made_up(shape, boxes)
        if reason:
            raise DamagedCheckpoint(f"{self._where}, {tree.dotted(path)}: {reason}")
        wanted = self.box(path, shape)
        for box, (_, number) in zip(boxes, begins, strict=True):
            if wanted is None or overlaps(box, wanted):
                self._need(number)
        return Tensor()

    def _see(self, number: int) -> None:
        if number not in self._places or number in self._seen:
            raise DamagedCheckpoint(f"{self._where}: tensor {number} does not exist or is used twice")
        self._seen.add(number)

    def _need(self, number: int) -> None:
        self.of[number] = (self._places[number][0].packs, self.stored(number))


def _whole(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def _box(offsets: Sequence[int], shape: Sequence[int]) -> Box:
    return tuple((start, start + size) for start, size in zip(offsets, shape, strict=False))
