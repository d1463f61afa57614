"""The files of a sweep, which several processes read while one writes."""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from gradwire.trainer.sweep.errors import UnwritableError

_AGAIN = 0.01  # seconds between two attempts at a lock


def write(path: Path, text: str) -> None:
    """Write a file at once and durably: readers see it as it was before or as it is then.

    Raises:
        UnwritableError: it cannot be written, as on a full disk.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        _remove(temporary)
        raise UnwritableError(f"{path} cannot be written: {error.strerror}") from error


def append(path: Path, line: str) -> None:
    """Add a line to a file, and end the one before if that is torn.

    Raises:
        UnwritableError: it cannot be written, as on a full disk.
    """
    try:
        with path.open("ab+") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            torn = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * torn + line.encode())
    except OSError as error:
        raise UnwritableError(f"{path} cannot be written: {error.strerror}") from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # what is in the way of writing is in the way of this too
        return


def lock(path: Path, waits: Callable[[], bool]) -> int | None:
    """Lock a file, which is made where it is missing; the kernel frees it when the process ends.

    Args:
        path: The file.
        waits: Asked now and then while another process has it: whether to wait on.

    Returns:
        A descriptor that frees it when closed; None where it was not worth waiting any more.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waits():
                time.sleep(_AGAIN)
                continue
            os.close(descriptor)
            return None
        return descriptor
