"""Packs: files of raw chunks, named by their SHA-256, written and read one at a time."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
import xxhash
from torch import Tensor

from gradwire.checkpoint.document import Fields
from gradwire.checkpoint.errors import DamagedCheckpoint, StateTooLarge
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import CHUNK_BYTES, Chunk, StoredTensor, pieces

PACK_BYTES = 64 * 2**20
LONGEST_PACK = 256 * 2**20


@dataclass(frozen=True)
class PackRef:
    """A pack that a part uses.

    Args:
        digest: SHA-256 of its bytes, which names it.
        size: Its bytes.
    """

    digest: str
    size: int

    @property
    def name(self) -> str:
        return f"packs/{self.digest}"

    def to_json(self) -> dict[str, Any]:
        return {"sha256": self.digest, "size": self.size}

    @classmethod
    def from_json(cls, fields: Fields) -> "PackRef":
        return cls(fields.sha256("sha256"), fields.integer("size", 1, LONGEST_PACK))


class PackWriter:
    """Collects tensors' bytes in a buffer of one pack and stores the pack when it is full.

    Bytes that were written before by the same writer are not written again: tied weights and equal states cost once.

    Args:
        store: Where packs go.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._buffer = np.empty(PACK_BYTES, np.uint8).data  # unlike a bytearray's, its pages cost nothing until written
        self._used = 0
        self._sha256 = hashlib.sha256()
        self._written: dict[tuple[str, int], Chunk] = {}
        self.packs: list[PackRef] = []
        self.created: list[str] = []

    def add(self, tensor: Tensor) -> StoredTensor:
        """Take a tensor's bytes.

        Raises:
            StoreError: a full pack could not be stored.
        """
        left = tensor.numel() * tensor.dtype.itemsize
        chunks = []
        filled, length = 0, min(left, CHUNK_BYTES)
        for piece in pieces(tensor, CHUNK_BYTES):
            while piece:
                if filled == 0:
                    self._make_room(length)
                taken = min(len(piece), length - filled)
                start = self._used + filled
                self._buffer[start : start + taken] = piece[:taken]
                piece, filled, left = piece[taken:], filled + taken, left - taken
                if filled == length:
                    chunks.append(self._keep(length))
                    filled, length = 0, min(left, CHUNK_BYTES)
        return StoredTensor(tensor.dtype, tuple(tensor.shape), tuple(chunks))

    def finish(self) -> None:
        """Store what is still in the buffer.

        Raises:
            StoreError: it could not be stored.
        """
        if self._used:
            self._flush()

    def _make_room(self, length: int) -> None:
        if self._used + length > PACK_BYTES:
            self._flush()

    def _keep(self, length: int) -> Chunk:
        """The chunk that stands behind the used part of the buffer; it stays there only if it is new."""
        data = self._buffer[self._used : self._used + length]
        digest = xxhash.xxh3_128_hexdigest(data)
        chunk = self._written.get((digest, length))
        if chunk is None:
            chunk = self._written[digest, length] = Chunk(len(self.packs), self._used, length, digest)
            self._sha256.update(data)
            self._used += length
        return chunk

    def _flush(self) -> None:
        pack = PackRef(self._sha256.hexdigest(), self._used)
        if self._store.put_content("packs", self._buffer[: self._used], pack.digest):
            self.created.append(pack.name)
        self.packs.append(pack)
        self._used, self._sha256 = 0, hashlib.sha256()


def read_tensors(store: Store, packs: Sequence[PackRef], wanted: Sequence[StoredTensor]) -> list[Tensor]:
    """The tensors' values, on the CPU. Each pack is read once; one is in memory at a time.

    Raises:
        StateTooLarge: they would not fit into the free memory (nothing is allocated then).
        DamagedCheckpoint: a pack is missing, has another size, or a chunk has another digest.
        StoreError: a pack could not be read.
    """
    needed, free = sum(tensor.nbytes for tensor in wanted), psutil.virtual_memory().available
    if needed > free:
        raise StateTooLarge(f"{store.url}: the tensors take {needed} bytes and {free} bytes of memory are free")
    tensors = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in wanted]
    targets: dict[int, list[tuple[Chunk, memoryview]]] = defaultdict(list)
    for stored, tensor in zip(wanted, tensors, strict=True):
        if stored.nbytes == 0:
            continue
        start, data = 0, tensor.reshape(-1).view(torch.uint8).numpy().data
        for chunk in stored.chunks:
            targets[chunk.pack].append((chunk, data[start : start + chunk.length]))
            start += chunk.length
    for index in sorted(targets):
        _copy_chunks(store, packs[index], targets[index])
    return tensors


def _copy_chunks(store: Store, pack: PackRef, targets: Iterable[tuple[Chunk, memoryview]]) -> None:
    data = memoryview(store.get(pack.name, pack.size))
    if len(data) != pack.size:
        raise DamagedCheckpoint(f"{store.url}: {pack.name} has {len(data)} of its {pack.size} bytes")
    verified: set[Chunk] = set()
    for chunk, target in targets:
        source = data[chunk.offset : chunk.offset + chunk.length]
        if chunk not in verified:
            if xxhash.xxh3_128_hexdigest(source) != chunk.digest:
                raise DamagedCheckpoint(
                    f"{store.url}: {pack.name} is altered: bytes {chunk.offset} to {chunk.offset + chunk.length} "
                    f"do not have the digest {chunk.digest}"
                )
            verified.add(chunk)
        target[:] = source
