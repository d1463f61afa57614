"""Reading packs: each once, several at a time, piece by piece; pieces are decoded and proven where they belong."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import psutil
import torch
import xxhash
from torch import Tensor

from gradwire.checkpoint.coding import RAW, Decoder, decode
from gradwire.checkpoint.errors import DamagedCheckpoint, StateTooLarge
from gradwire.checkpoint.pack_walk import PackWalk
from gradwire.checkpoint.packs import PackRef
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import Chunk, StoredTensor, check_truths

READERS = 2  # threads; each reads one pack, and decodes and proves it


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
    # torch's memory is of small pages; huge ones take a quarter of the processor's time to touch for the first time,
    # but are also the ones that a hypervisor takes back while they are free: it then gives 0.4 GB of them a second
    memory = [torch.empty(tensor.nbytes, dtype=torch.uint8) for _, tensor in wanted]
    tensors = [each.view(tensor.dtype).view(tensor.shape) for each, (_, tensor) in zip(memory, wanted, strict=True)]
    targets: dict[PackRef, list[_Target]] = defaultdict(list)
    for (packs, stored), tensor in zip(wanted, tensors, strict=True):
        for target in _targets(stored, tensor):
            targets[packs[target.chunk.pack]].append(target)
    with ThreadPoolExecutor(readers, "gradwire-packs") as threads:
        reading = [threads.submit(_read_pack, store, pack, each) for pack, each in targets.items()]
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
    dtype: torch.dtype
    memory: memoryview

    @property
    def content(self) -> tuple[int, int, int, str, str, str]:
        """Equal for targets of the same bytes; sorted by where those begin."""
        chunk = self.chunk
        return (chunk.offset, chunk.stored, chunk.length, chunk.coding, chunk.digest, str(self.dtype))


def _targets(stored: StoredTensor, tensor: Tensor) -> Iterable[_Target]:
    if stored.nbytes == 0:
        return
    start, memory = 0, tensor.reshape(-1).view(torch.uint8).numpy().data
    for chunk in stored.chunks:
        yield _Target(chunk, stored.dtype, memory[start : start + chunk.length])
        start += chunk.length


def _read_pack(store: Store, pack: PackRef, targets: Sequence[_Target]) -> None:
    where = f"{store.url}: {pack.name}"
    longest = max((target.chunk.stored for target in targets if target.chunk.coding != RAW), default=0)
    bench, decoder = np.empty(longest, np.uint8).data, Decoder()
    wrong: list[DamagedCheckpoint] = []
    with store.opened(pack.name, pack.size) as source:
        walk = PackWalk(source, pack, where)
        for first, *others in _alike(targets):
            stored = first.memory if first.chunk.coding == RAW else bench[: first.chunk.stored]
            walk.read_into(stored, first.chunk.offset)
            try:
                _unpack_into(first, stored, decoder, where)
            except DamagedCheckpoint as error:
                wrong.append(error)
            for other in others:
                np.copyto(np.asarray(other.memory), np.asarray(first.memory))
        walk.finish()  # that the pack is altered is told first
    if wrong:
        raise wrong[0]


def _unpack_into(target: _Target, stored: memoryview, decoder: Decoder, where: str) -> None:
    chunk, place = target.chunk, _place(target.chunk, where)
    if chunk.coding != RAW:
        decoder.decode_into(target.memory, stored, target.dtype.itemsize, place)
    _prove(target.memory, chunk, target.dtype, place)


def _alike(targets: Sequence[_Target]) -> Iterable[list[_Target]]:
    """The targets of the same bytes together, in the order of the bytes."""
    found: dict[tuple[int, int, int, str, str, str], list[_Target]] = defaultdict(list)
    for target in targets:
        found[target.content].append(target)
    return [found[content] for content in sorted(found)]


def unpack(pack: memoryview, chunk: Chunk, dtype: torch.dtype, where: str) -> memoryview:
    """The bytes of a tensor that a chunk stands for, proven by their digest.

    Args:
        pack: The bytes of the chunk's pack.
        chunk: The chunk.
        dtype: Type of the tensor's elements.
        where: Name of the pack, for messages.

    Raises:
        DamagedCheckpoint: there are other bytes.
    """
    data, where = pack[chunk.offset : chunk.offset + chunk.stored], _place(chunk, where)
    if chunk.coding != RAW:
        data = decode(data, dtype.itemsize, chunk.length, where)
    _prove(data, chunk, dtype, where)
    return data


def _place(chunk: Chunk, where: str) -> str:
    """Of a chunk's stored bytes, for messages."""
    return f"{where}: what is at bytes {chunk.offset} to {chunk.offset + chunk.stored}"


def _prove(data: memoryview, chunk: Chunk, dtype: torch.dtype, where: str) -> None:
    if xxhash.xxh3_128_hexdigest(data) != chunk.digest:
        raise DamagedCheckpoint(f"{where} does not have the digest {chunk.digest}")
    check_truths(data, dtype, where)
