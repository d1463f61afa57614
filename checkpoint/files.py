"""The operations on files that durability rests on, one method each, so that a test can put a failing disk below."""

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

Read = TypeVar("Read")
UNREADABLE = frozenset((errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENXIO, errno.ELOOP))
"""What reading a file ends with where it is there and its disk, or what it is, does not let it be read."""
_PAUSES = (0.05, 0.25)  # seconds


def patiently(read: Callable[[], Read]) -> Read:
    """What a read gives; tried again a moment later where the file cannot be read, in case that was an accident."""
    for pause in _PAUSES:
        try:
            return read()
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
        time.sleep(pause)
    return read()


class Files(Protocol):
    """What LocalObjects asks of a file system; errors are OSErrors. Open files are numbers."""

    def create(self, path: Path) -> int:
        """Open a new file for writing. Raises FileExistsError where the name is taken."""

    def write(self, file: int, data: memoryview) -> int:
        """Append bytes; how many were taken."""

    def sync(self, file: int) -> None:
        """Make the file's bytes durable."""

    def close(self, file: int) -> None: ...

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Raises FileExistsError where it is taken."""

    def rename(self, source: Path, target: Path) -> None:
        """Put a file under another name, in place of what has it."""

    def unlink(self, path: Path) -> None: ...

    def make_folder(self, path: Path) -> None:
        """Make a folder. Raises FileExistsError where the name is taken."""

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""

    def sync_folder(self, path: Path) -> None:
        """Make the folder's names durable."""

    def is_folder(self, path: Path) -> bool: ...

    def is_mount(self, path: Path) -> bool:
        """Whether a file system begins here."""

    def exists(self, path: Path) -> bool: ...

    def names(self, path: Path) -> list[str]: ...

    def size(self, path: Path) -> int: ...

    def modified(self, path: Path) -> float: ...

    def read(self, path: Path, length: int) -> bytes:
        """At most the first `length` bytes."""

    def open(self, path: Path) -> int:
        """Open a file for reading, from its beginning to its end."""

    def read_into(self, file: int, target: memoryview, start: int) -> int:
        """Fill memory, or some of it, with a file's bytes from `start` on; how many: none only where it ends."""


class RealFiles:
    """The operating system's."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, file: int, data: memoryview) -> int:
        return os.write(file, data)

    def sync(self, file: int) -> None:
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def make_folder(self, path: Path) -> None:
        path.mkdir()

    def remove_folder(self, path: Path) -> None:
        path.rmdir()

    def sync_folder(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def is_mount(self, path: Path) -> bool:
        return path.is_mount()

    def exists(self, path: Path) -> bool:
        return path.exists()

    def names(self, path: Path) -> list[str]:
        return os.listdir(path)  # noqa: PTH208 - names, not paths

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified(self, path: Path) -> float:
        return path.stat().st_mtime

    def read(self, path: Path, length: int) -> bytes:
        with open(self.open(path), "rb") as file:  # noqa: PTH123 - a descriptor
            return file.read(min(length, os.fstat(file.fileno()).st_size))

    def open(self, path: Path) -> int:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe has nobody at its other end
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EBADMSG, "it is no regular file", str(path))
        return file

    def read_into(self, file: int, target: memoryview, start: int) -> int:
        return os.preadv(file, [target], start)
