"""Copies of tensors that are about to be journalled, in memory that is used again."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.checkpoint.blobs import Blob, bytes_of

_ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class Copied:
    """Blobs over a buffer.

    Args:
        blobs: The copies, by name.
        buffer: Where they are.
        pinned: Whether the buffer is pinned.
    """

    blobs: Mapping[str, Blob]
    buffer: Tensor
    pinned: bool


class Buffers:
    """Memory for copies; pinned where the tensors are on a GPU.

    Args:
        most_bytes: Of unused memory that is kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._free: list[Copied] = []
        self._lock = threading.Lock()

    def copy(self, blobs: Mapping[str, Blob]) -> Copied:
        """Copy the blobs' data onto the CPU; done when it returns."""
        offsets, total = [], 0
        for blob in blobs.values():
            offsets.append(total)
            total += -(-blob.data.nbytes // _ALIGNMENT) * _ALIGNMENT
        pinned = any(blob.data.is_cuda for blob in blobs.values())
        buffer = self._take(total, pinned)
        copies = {}
        for offset, (name, blob) in zip(offsets, blobs.items(), strict=True):
            part = buffer[offset : offset + blob.data.nbytes]
            part.copy_(bytes_of(blob.data), non_blocking=pinned)
            copies[name] = Blob(part.view(blob.data.dtype).view(blob.data.shape), blob.ranges, blob.coding)
        if pinned:
            torch.cuda.current_stream().synchronize()
        return Copied(copies, buffer, pinned)

    def give_back(self, copied: Copied) -> None:
        """Let the memory be used for other copies."""
        with self._lock:
            if sum(free.buffer.nbytes for free in self._free) + copied.buffer.nbytes <= self._most_bytes:
                self._free.append(copied)

    def _take(self, nbytes: int, pinned: bool) -> Tensor:
        with self._lock:
            for index, free in enumerate(self._free):
                if free.buffer.nbytes >= nbytes and free.pinned == pinned:
                    return self._free.pop(index).buffer
            self._free.clear()  # too small: sizes have changed
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
