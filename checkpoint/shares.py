"""Which rank writes which tensor of the state that all share: each is written once, and all write about as much."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import xxhash
from torch import Tensor

from gradwire.checkpoint.errors import UnsupportedState
from gradwire.checkpoint.ranks import Ranks
from gradwire.checkpoint.snapshot import Gathered
from gradwire.checkpoint.tensors import CHUNK_BYTES, pieces


def deal(sizes: Sequence[int], ranks: int) -> list[int]:
    """The rank of each tensor: from the largest to the smallest, each goes to the rank that has the least so far.

    A function of the sizes alone, so that a tensor stays with its rank from snapshot to snapshot.

    Args:
        sizes: Bytes of each tensor.
        ranks: How many ranks there are.
    """
    owners, loads = [0] * len(sizes), [0] * ranks
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        owners[index] = min(range(ranks), key=loads.__getitem__)
        loads[owners[index]] += sizes[index]
    return owners


def share_out(ranks: Ranks, shared: Mapping[str, Any]) -> list[int] | None:
    """The rank that writes each tensor of the shared tree, agreed on by all; None where rank 0 writes all of them.

    A tensor that is not the same on every rank (statistics of batches, say) is written by rank 0, and so is everything
    if the ranks' trees do not have the same names, types and shapes. Equal tensors have one owner. Slices have theirs.

    Raises:
        RanksFailed: on some rank the tree holds what cannot be saved, or there are slices and the trees differ.
        CheckpointError: a rank did not answer.
    """
    if ranks.size == 1:
        return None
    tensors: list[Tensor] = []
    holders: list[int | None] = []
    contents: list[str] = []

    def describe() -> tuple[str, str, bool]:
        outline = hashlib.sha256()
        gathered = Gathered("shared", shared)
        holders.extend(gathered.owners)
        for path, tensor, holder in zip(gathered.paths, gathered.tensors, holders, strict=True):
            outline.update(f"{path}\0{tensor.dtype}\0{tuple(tensor.shape)}\0{holder}\0".encode())
            tensors.append(tensor)
            contents.append(content_digest(tensor) if holder is None else f"slice {len(contents)}")
        return outline.hexdigest(), hashlib.sha256("".join(contents).encode()).hexdigest(), _any_slices(holders)

    answers = ranks.together(describe)
    if any(outline != answers[0][0] for outline, _, _ in answers):
        if any(sliced for _, _, sliced in answers):
            ranks.together(_refuse_slices)
        return None
    owners = _dealt(tensors, holders, ranks.size)
    if any(content != answers[0][1] for _, content, _ in answers):
        everyones = ranks.together(lambda: contents)
        contents = list(everyones[0])
        for index, content in enumerate(everyones[0]):
            if any(others[index] != content for others in everyones):
                owners[index], contents[index] = 0, f"rank 0's own {index}"  # another rank has another one there
    first: dict[str, int] = {}
    return [owners[first.setdefault(content, index)] for index, content in enumerate(contents)]


def _any_slices(holders: Sequence[int | None]) -> bool:
    """Whether a tree has tensors in slices."""
    return any(holder is not None for holder in holders)


def _dealt(tensors: Sequence[Tensor], holders: Sequence[int | None], ranks: int) -> list[int]:
    """Owners: of slices those who hold them, of the others as dealt out."""
    sizes = [
        tensor.numel() * tensor.dtype.itemsize if holder is None else 0
        for tensor, holder in zip(tensors, holders, strict=True)
    ]
    return [dealt if holder is None else holder for dealt, holder in zip(deal(sizes, ranks), holders, strict=True)]


def _refuse_slices() -> NoReturn:
    raise UnsupportedState("the ranks' states differ in names, types or shapes, and hold tensors in slices")


def content_digest(tensor: Tensor) -> str:
    """The xxh3-128 of a tensor's bytes in row-major order, whatever its strides."""
    digest = xxhash.xxh3_128()
    for piece in pieces(tensor, CHUNK_BYTES):
        digest.update(piece)
    return digest.hexdigest()
