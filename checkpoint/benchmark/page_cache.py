"""Reading what was written: from the disk itself, where its cache may be dropped, and how fast that is at best."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

_PIECE = 16 * 2**20


def can_drop() -> bool:
    """Whether this system drops the cache of a file when it is asked to."""
    return hasattr(os, "posix_fadvise")


def drop(folder: Path) -> None:
    """Have what is read next of the files below a folder come from the disk. Other files stay in the cache.

    Raises:
        OSError: a file cannot be opened.
    """
    os.sync()  # only what is on the disk can leave the cache
    for path in filter(Path.is_file, folder.rglob("*")):
        file = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def read_seconds(files: Iterable[Path]) -> tuple[float, int]:
    """Read files from end to end, one after the other, and nothing else: the seconds, and the bytes."""
    buffer, total = memoryview(bytearray(_PIECE)), 0
    started = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return time.perf_counter() - started, total
