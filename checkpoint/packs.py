"""Packs: files of chunks, named by their SHA-256; filled in one buffer while the one before is stored."""

import hashlib
import secrets
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from torch import Tensor

from gradwire.checkpoint.coding import FAR, NEAR, Coder, Worth
from gradwire.checkpoint.document import Fields
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import CHUNK_BYTES, Chunk, StoredTensor, cut

if TYPE_CHECKING:
    from gradwire.checkpoint.known import Known

PACK_BYTES = 64 * 2**20
SALT = 16  # random bytes before the chunks: what one save writes, no clean-up on behalf of another can be removing
LONGEST_PACK = 256 * 2**20


@dataclass(frozen=True)
class PackRef:
    """A pack that a part uses.

    Args:
        digest: SHA-256 of its bytes, which names it.
        size: Its bytes.
        checksum: xxh3-128 of its bytes, 32 hexadecimal digits: what reading proves, because it takes less time.
    """

    digest: str
    size: int
    checksum: str

    @property
    def name(self) -> str:
        return f"packs/{self.digest}"

    def to_json(self) -> dict[str, Any]:
        return {"sha256": self.digest, "size": self.size, "xxh3": self.checksum}

    @classmethod
    def from_json(cls, fields: Fields) -> "PackRef":
        return cls(fields.sha256("sha256"), fields.integer("size", 1, LONGEST_PACK), fields.xxh3("xxh3"))


def worth_for(stores: Sequence[Store]) -> Worth:
    """Which chunks are to be coded in packs that go to some stores: few where all of them are at hand."""
    return NEAR if all(store.near for store in stores) else FAR


class PackWriter:
    """Collects tensors' chunks in a buffer of one pack and stores the pack, in a thread, when it is full.

    Bytes that were written before by the same writer, or that are known, are not written again: tied weights, equal
    states and what did not change cost nothing.

    Args:
        store: Where packs go.
        known: Chunks that are in the store already.
        worth: Which chunks are coded; where None, what suits the store.
    """

    def __init__(self, store: Store, known: "Known | None" = None, worth: Worth | None = None) -> None:
        self._store = store
        self._worth = worth or worth_for([store])
        self._known = known
        self._thread = ThreadPoolExecutor(1, "gradwire-packs")
        # their pages cost nothing until they are written
        self._buffers = [np.empty(SALT + PACK_BYTES, np.uint8) for _ in range(2)]
        self._used = 0
        self._placed: dict[tuple[str, int, int], Chunk] = {}
        self._indices: dict[PackRef, int] = {}
        self._packs: list[PackRef | Future[PackRef]] = []
        self._filling = 0
        self._created: list[str] = []

    def add(self, tensor: Tensor) -> StoredTensor:
        """Take a tensor's bytes.

        Raises:
            StoreError: a full pack could not be stored.
        """
        coder = Coder(tensor.dtype.itemsize, self._worth)
        chunks = [self._place(data, tensor.dtype.itemsize, coder) for data in cut(tensor, CHUNK_BYTES)]
        return StoredTensor(tensor.dtype, tuple(tensor.shape), tuple(chunks))

    def finish(self) -> list[PackRef]:
        """Store what is still in the buffer; the packs that the tensors' chunks name by their index.

        Raises:
            StoreError: it could not be stored.
        """
        if self._used:
            self._flush()
        return [pack if isinstance(pack, PackRef) else pack.result() for pack in self._packs]

    def close(self) -> list[str]:
        """End the thread, once it has stored what it was given; the packs that are new in the store."""
        self._thread.shutdown()
        return self._created

    def _place(self, data: memoryview, item_size: int, coder: Coder) -> Chunk:
        key = (xxhash.xxh3_128_hexdigest(data), len(data), item_size)
        if key not in self._placed:
            found = None if self._known is None else self._known.find(key)
            if found is None:
                self._placed[key] = self._append(key[0], data, coder)
            else:
                pack, chunk = found
                self._placed[key] = replace(chunk, pack=self._index(pack))
        return self._placed[key]

    def _index(self, pack: PackRef) -> int:
        if pack not in self._indices:
            self._indices[pack] = len(self._packs)
            self._packs.append(pack)
        return self._indices[pack]

    def _append(self, digest: str, data: memoryview, coder: Coder) -> Chunk:
        coding, stored = coder.code(data)
        if self._used + len(stored) > SALT + PACK_BYTES:
            self._flush()
        if self._used == 0:
            self._filling = len(self._packs)
            self._packs.append(Future())  # stands for the pack until it is full
            self._buffers[0][:SALT] = np.frombuffer(secrets.token_bytes(SALT), np.uint8)
            self._used = SALT
        start, self._used = self._used, self._used + len(stored)
        np.copyto(self._buffers[0][start : self._used], np.frombuffer(stored, np.uint8))
        return Chunk(self._filling, start, len(stored), len(data), coding, digest)

    def _flush(self) -> None:
        for pack in self._packs[: self._filling]:
            if isinstance(pack, Future):
                pack.result()  # the other buffer is free, and what went wrong shows
        self._packs[self._filling] = self._thread.submit(self._put, self._buffers[0][: self._used].data)
        self._buffers.reverse()
        self._used = 0

    def _put(self, data: memoryview) -> PackRef:
        pack = PackRef(hashlib.sha256(data).hexdigest(), len(data), xxhash.xxh3_128_hexdigest(data))
        if self._store.put_content("packs", data, pack.digest):
            self._created.append(pack.name)
        return pack
