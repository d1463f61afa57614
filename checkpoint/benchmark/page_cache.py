"""Reading what was written: from the disk itself, where its cache may be dropped, and how fast that is at best."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

_DROP = Path("/proc/sys/vm/drop_caches")
_PIECE = 16 * 2**20


def can_drop() -> bool:
    """Whether this process may drop the cache of all files: on Linux, for root."""
    return os.access(_DROP, os.W_OK)


def drop() -> None:
    """Have what is read next come from the disk.

    Raises:
        OSError: this process may not.
    """
    os.sync()
    _DROP.write_text("3")


def read_seconds(files: Iterable[Path]) -> tuple[float, int]:
    """Read files from end to end, one after the other, and nothing else: the seconds, and the bytes."""
    buffer, total = memoryview(bytearray(_PIECE)), 0
    started = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return time.perf_counter() - started, total
