"""Objects that are read piece by piece, into memory that is there already."""

from typing import Protocol

import numpy as np

from gradwire.checkpoint.files import Files, patiently


class Source(Protocol):
    """An object that is open for reading."""

    def read_into(self, target: memoryview, start: int) -> int:
        """Fill memory with the object's bytes from `start` on; how many there were: fewer only where it ends."""


class FileSource:
    """A file.

    Args:
        files: The file system's operations.
        file: The open file.
    """

    def __init__(self, files: Files, file: int) -> None:
        self._files = files
        self._file = file

    def read_into(self, target: memoryview, start: int) -> int:
        done = 0
        while done < len(target):
            count = patiently(lambda: self._files.read_into(self._file, target[done:], start + done))  # noqa: B023
            if count == 0:
                break
            done += count
        return done


class BytesSource:
    """Bytes that have arrived.

    Args:
        data: They.
    """

    def __init__(self, data: bytes) -> None:
        self._data = np.frombuffer(data, np.uint8)

    def read_into(self, target: memoryview, start: int) -> int:
        piece = self._data[start : start + len(target)]
        np.copyto(np.frombuffer(target[: len(piece)], np.uint8), piece)
        return len(piece)
