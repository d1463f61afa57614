"""What a writer's last snapshot has in the store already, so that the next one need not write it again."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from gradwire.checkpoint.errors import MissingObject
from gradwire.checkpoint.packs import SALT, PackRef
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import Chunk, StoredTensor

LEAST_USED = 0.25
_ASKING = 8  # threads, because an object store takes its time to answer
Key = tuple[str, int, int]


class Contents(Protocol):
    """What a part says of its packs."""

    @property
    def packs(self) -> tuple[PackRef, ...]: ...
    @property
    def tensors(self) -> tuple[StoredTensor, ...]: ...


@dataclass
class _Pack:
    """A pack with the chunks in it, by where they begin."""

    ref: PackRef
    chunks: dict[int, tuple[Key, Chunk]]

    @property
    def is_worth_keeping(self) -> bool:
        return sum(chunk.stored for _, chunk in self.chunks.values()) >= LEAST_USED * (self.ref.size - SALT)


class Known:
    """Chunks of this rank's last committed snapshot, or of the one that was restored.

    A pack of which that snapshot used less than a quarter is not among them: what is alive in it is written anew, so
    that old packs die out.
    """

    def __init__(self) -> None:
        self._chunks: dict[Key, tuple[PackRef, Chunk]] = {}

    def find(self, key: Key) -> tuple[PackRef, Chunk] | None:
        """Where a chunk is.

        Args:
            key: Its digest, its length, and the size of its elements, by which it may have been coded.
        """
        return self._chunks.get(key)

    def replace(self, parts: Iterable[Contents]) -> None:
        """Know what these parts use, and nothing else."""
        packs: dict[str, _Pack] = {}
        for part in parts:
            for tensor in part.tensors:
                for chunk in tensor.chunks:
                    ref = part.packs[chunk.pack]
                    key = (chunk.digest, chunk.length, tensor.dtype.itemsize)
                    packs.setdefault(ref.name, _Pack(ref, {})).chunks[chunk.offset] = (key, chunk)
        self._chunks = {
            key: (pack.ref, chunk)
            for pack in packs.values()
            if pack.is_worth_keeping
            for key, chunk in pack.chunks.values()
        }

    def check(self, store: Store) -> None:
        """Forget packs that the store no longer has whole.

        Raises:
            StoreError: the store did not answer.
        """
        refs = list({ref: None for ref, _ in self._chunks.values()})
        with ThreadPoolExecutor(_ASKING) as threads:
            whole = dict(zip(refs, threads.map(lambda ref: _is_there(store, ref), refs), strict=True))
        self._chunks = {key: (ref, chunk) for key, (ref, chunk) in self._chunks.items() if whole[ref]}


def _is_there(store: Store, pack: PackRef) -> bool:
    try:
        return store.size(pack.name) == pack.size
    except MissingObject:
        return False
