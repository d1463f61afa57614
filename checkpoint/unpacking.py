"""Reading packs: each once, several at a time; other threads decode its chunks, where they belong, while it is read."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import psutil
import torch
import xxhash
from torch import Tensor

from gradwire.checkpoint.allocation import allocated, allocated_together
from gradwire.checkpoint.coding import RAW, Decoder, decode
from gradwire.checkpoint.errors import DamagedCheckpoint, StateTooLarge
from gradwire.checkpoint.pack_walk import PackWalk
from gradwire.checkpoint.packs import PackRef
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import Chunk, StoredTensor

READERS = 2  # threads; each holds one pack
_BENCHES = 8  # chunks that are read and not yet decoded
_BENCH_BYTES = 32 * 2**20


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
    memory = allocated_together([tensor.nbytes for _, tensor in wanted])
    tensors = [each.view(tensor.dtype).view(tensor.shape) for each, (_, tensor) in zip(memory, wanted, strict=True)]
    targets: dict[PackRef, list[_Target]] = defaultdict(list)
    for (packs, stored), tensor in zip(wanted, tensors, strict=True):
        for target in _targets(stored, tensor):
            targets[packs[target.chunk.pack]].append(target)
    coded = [each.chunk.stored for some in targets.values() for each in some if each.chunk.coding != RAW]
    benches = _Benches(max(coded, default=0))
    with (
        ThreadPoolExecutor(readers, "gradwire-packs") as threads,
        ThreadPoolExecutor(readers, "gradwire-chunks") as unpackers,
    ):
        reading = [threads.submit(_read_pack, store, pack, each, unpackers, benches) for pack, each in targets.items()]
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

    @property
    def content(self) -> tuple[int, int, int, str, str, int]:
        """Equal for targets of the same bytes; sorted by where those begin."""
        chunk = self.chunk
        return (chunk.offset, chunk.stored, chunk.length, chunk.coding, chunk.digest, self.item_size)


def _targets(stored: StoredTensor, tensor: Tensor) -> Iterable[_Target]:
    if stored.nbytes == 0:
        return
    start, memory = 0, tensor.reshape(-1).view(torch.uint8).numpy().data
    for chunk in stored.chunks:
        yield _Target(chunk, stored.dtype.itemsize, memory[start : start + chunk.length])
        start += chunk.length


@dataclass(frozen=True, eq=False)
class _Bench:
    """Where a chunk is decoded: memory for its stored bytes, and what decodes them."""

    memory: memoryview
    decoder: Decoder


class _Benches:
    """A few benches, each used again as soon as it is free.

    Args:
        longest: Bytes of the longest chunk that is to be decoded.
    """

    def __init__(self, longest: int) -> None:
        count = max(READERS, min(_BENCHES, _BENCH_BYTES // max(longest, 1)))
        memory = allocated(count * longest).numpy().data
        self._free: SimpleQueue[_Bench] = SimpleQueue()
        for start in range(0, count * longest, max(longest, 1)):
            self._free.put(_Bench(memory[start : start + longest], Decoder()))

    def take(self) -> _Bench:
        return self._free.get()

    def give_back(self, bench: _Bench) -> None:
        self._free.put(bench)


def _read_pack(store: Store, pack: PackRef, targets: Sequence[_Target], unpackers: Executor, benches: _Benches) -> None:
    where = f"{store.url}: {pack.name}"
    with store.opened(pack.name, pack.size) as source:
        walk = PackWalk(source, pack, where)
        unpacking = [_begin(walk, alike, unpackers, benches, where) for alike in _alike(targets)]
        walk.finish()
    for chunk in unpacking:
        chunk.result()


def _alike(targets: Sequence[_Target]) -> Iterable[list[_Target]]:
    """The targets of the same bytes together, in the order of the bytes."""
    found: dict[tuple[int, int, int, str, str, int], list[_Target]] = defaultdict(list)
    for target in targets:
        found[target.content].append(target)
    return [found[content] for content in sorted(found)]


def _begin(
    walk: PackWalk, targets: Sequence[_Target], unpackers: Executor, benches: _Benches, where: str
) -> "Future[None]":
    """Read a chunk, and let another thread do the rest."""
    chunk = targets[0].chunk
    if chunk.coding == RAW:
        walk.read_into(targets[0].memory, chunk.offset)
        return unpackers.submit(_spread, targets, where)
    bench = benches.take()
    try:
        walk.read_into(bench.memory[: chunk.stored], chunk.offset)
    except BaseException:
        benches.give_back(bench)
        raise
    return unpackers.submit(_decode, targets, bench, benches, where)


def _decode(targets: Sequence[_Target], bench: _Bench, benches: _Benches, where: str) -> None:
    first = targets[0]
    try:
        stored = bench.memory[: first.chunk.stored]
        bench.decoder.decode_into(first.memory, stored, first.item_size, _place(first.chunk, where))
    finally:
        benches.give_back(bench)
    _spread(targets, where)


def _spread(targets: Sequence[_Target], where: str) -> None:
    """Put what is in the first target into the others, and prove all."""
    first = targets[0]
    for target in targets:
        if target is not first:
            np.copyto(np.asarray(target.memory), np.asarray(first.memory))
        _prove(target.memory, target.chunk, _place(target.chunk, where))


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
    data, where = pack[chunk.offset : chunk.offset + chunk.stored], _place(chunk, where)
    if chunk.coding != RAW:
        data = decode(data, item_size, chunk.length, where)
    _prove(data, chunk, where)
    return data


def _place(chunk: Chunk, where: str) -> str:
    """Of a chunk's stored bytes, for messages."""
    return f"{where}: what is at bytes {chunk.offset} to {chunk.offset + chunk.stored}"


def _prove(data: memoryview, chunk: Chunk, where: str) -> None:
    if xxhash.xxh3_128_hexdigest(data) != chunk.digest:
        raise DamagedCheckpoint(f"{where} does not have the digest {chunk.digest}")
