"""Reading packs: each once, several at a time, its chunks decoded by several threads where they belong."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import psutil
import torch
import xxhash
from torch import Tensor

from gradwire.checkpoint.allocation import allocated
from gradwire.checkpoint.coding import RAW, decode, decode_into
from gradwire.checkpoint.errors import DamagedCheckpoint, StateTooLarge
from gradwire.checkpoint.packs import PackRef
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import Chunk, StoredTensor

READERS = 2  # threads; each holds one pack


def read_tensors(
    store: Store, packs: Sequence[PackRef], wanted: Sequence[StoredTensor], readers: int = READERS
) -> list[Tensor]:
    """The values of tensors of one part, on the CPU; arguments and errors as in `read_scattered`."""
    return read_scattered(store, [(packs, tensor) for tensor in wanted], readers)


def read_scattered(
    store: Store, wanted: Sequence[tuple[Sequence[PackRef], StoredTensor]], readers: int = READERS
) -> list[Tensor]:
    """The values of tensors of several parts, on the CPU. Each pack is read once, `readers` of them at a time.

    Args:
        store: Where they are.
        wanted: The tensors, each with its part's packs.
        readers: Number of threads.

    Raises:
        StateTooLarge: they would not fit into the free memory (nothing is allocated then).
        DamagedCheckpoint: a pack is missing or altered, or a chunk has another digest.
        StoreError: a pack could not be read.
    """
    needed, free = sum(tensor.nbytes for _, tensor in wanted), psutil.virtual_memory().available
    if needed > free:
        raise StateTooLarge(f"{store.url}: the tensors take {needed} bytes and {free} bytes of memory are free")
    tensors = [allocated(tensor.nbytes).view(tensor.dtype).view(tensor.shape) for _, tensor in wanted]
    targets: dict[PackRef, list[_Target]] = defaultdict(list)
    for (packs, stored), tensor in zip(wanted, tensors, strict=True):
        for target in _targets(stored, tensor):
            targets[packs[target.chunk.pack]].append(target)
    with (
        ThreadPoolExecutor(readers, "gradwire-packs") as threads,
        ThreadPoolExecutor(readers, "gradwire-chunks") as unpackers,
    ):
        reading = [threads.submit(_read_pack, store, pack, each, unpackers) for pack, each in targets.items()]
        try:
            for pack in reading:
                pack.result()
        finally:
            for pack in reading:
                pack.cancel()
    return tensors


@dataclass(frozen=True, eq=False)
class _Target:
    """Where a chunk's bytes go: [length] of a tensor's memory."""

    chunk: Chunk
    item_size: int
    memory: memoryview


def _targets(stored: StoredTensor, tensor: Tensor) -> Iterable[_Target]:
    if stored.nbytes == 0:
        return
    start, memory = 0, tensor.reshape(-1).view(torch.uint8).numpy().data
    for chunk in stored.chunks:
        yield _Target(chunk, stored.dtype.itemsize, memory[start : start + chunk.length])
        start += chunk.length


def _read_pack(store: Store, pack: PackRef, targets: Sequence[_Target], unpackers: Executor) -> None:
    data = memoryview(store.get(pack.name, pack.size))
    where = f"{store.url}: {pack.name}"
    if len(data) != pack.size:
        raise DamagedCheckpoint(f"{where} has {len(data)} of its {pack.size} bytes")
    if xxhash.xxh3_128_hexdigest(data) != pack.checksum:
        raise DamagedCheckpoint(f"{where} is altered: its bytes do not have the digest {pack.checksum}")

    def unpack_some(some: Sequence[_Target]) -> None:
        for target in some:
            _unpack_into(target, data, where)

    list(unpackers.map(unpack_some, [targets[first::READERS] for first in range(READERS)]))


def unpack(pack: memoryview, chunk: Chunk, item_size: int, where: str) -> memoryview:
    """The bytes of a tensor that a chunk stands for, proven by their digest.

    Args:
        pack: The bytes of the chunk's pack.
        chunk: The chunk.
        item_size: Bytes of the tensor's elements.
        where: Name of the pack, for messages.

    Raises:
        DamagedCheckpoint: there are other bytes.
    """
    data, where = _stored(pack, chunk, where)
    if chunk.coding != RAW:
        data = decode(data, item_size, chunk.length, where)
    _prove(data, chunk, where)
    return data


def _unpack_into(target: "_Target", pack: memoryview, where: str) -> None:
    """Put a chunk's bytes where they belong, proven there; as `unpack`, with one copy less."""
    data, where = _stored(pack, target.chunk, where)
    if target.chunk.coding == RAW:
        np.copyto(np.asarray(target.memory), np.asarray(data))
    else:
        decode_into(target.memory, data, target.item_size, where)
    _prove(target.memory, target.chunk, where)


def _stored(pack: memoryview, chunk: Chunk, where: str) -> tuple[memoryview, str]:
    """A chunk's bytes as they are stored, and their place, for messages."""
    end = chunk.offset + chunk.stored
    return pack[chunk.offset : end], f"{where}: what is at bytes {chunk.offset} to {end}"


def _prove(data: memoryview, chunk: Chunk, where: str) -> None:
    if xxhash.xxh3_128_hexdigest(data) != chunk.digest:
        raise DamagedCheckpoint(f"{where} does not have the digest {chunk.digest}")
