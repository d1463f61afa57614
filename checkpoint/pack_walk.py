"""A pack, read once from its first byte to its last, and digested on the way."""

import numpy as np
import xxhash

from gradwire.checkpoint.errors import DamagedCheckpoint
from gradwire.checkpoint.packs import PackRef
from gradwire.checkpoint.source import Source

_PIECE = 2**20


class PackWalk:
    """Reads pieces of a pack in the order in which they begin, and what lies between them.

    Args:
        source: The pack's object.
        pack: What is known of it.
        where: Its name, for messages.
    """

    def __init__(self, source: Source, pack: PackRef, where: str) -> None:
        self._source = source
        self._pack = pack
        self._where = where
        self._digest = xxhash.xxh3_128()
        self._position = 0
        self._between = np.empty(min(_PIECE, pack.size), np.uint8).data

    def read_into(self, target: memoryview, start: int) -> None:
        """Fill memory with the pack's bytes from `start` on, which may have been read before. They are not proven yet.

        Raises:
            DamagedCheckpoint: the pack ends before.
            StoreError: it could not be read.
        """
        self._skip_to(start)
        self._fill(target, start)
        self._digest.update(target[self._position - start :])
        self._position = max(self._position, start + len(target))

    def finish(self) -> None:
        """Read what is left, and prove all of the pack.

        Raises:
            DamagedCheckpoint: its bytes are others, or it has fewer or more of them.
            StoreError: it could not be read.
        """
        self._skip_to(self._pack.size)
        if self._source.read_into(self._between[:1], self._pack.size):
            raise DamagedCheckpoint(f"{self._where} is longer than the {self._pack.size} bytes it may have")
        if self._digest.hexdigest() != self._pack.checksum:
            raise DamagedCheckpoint(f"{self._where} is altered: its bytes do not have the digest {self._pack.checksum}")

    def _skip_to(self, start: int) -> None:
        while self._position < start:
            piece = self._between[: start - self._position]
            self._fill(piece, self._position)
            self._digest.update(piece)
            self._position += len(piece)

    def _fill(self, target: memoryview, start: int) -> None:
        count = self._source.read_into(target, start)
        if count < len(target):
            raise DamagedCheckpoint(f"{self._where} has {start + count} of its {self._pack.size} bytes")
