"""The user's cache folder: each entry is made once, by one process, and appears whole or not at all."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gradwire.trainer.data.errors import DataError


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/gradwire`, or `~/.cache/gradwire`.

    Raises:
        DataError: it cannot be made.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "gradwire"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"the cache folder cannot be made ({error}): set XDG_CACHE_HOME to a folder that you may write to"
        ) from error
    return folder


def cached(name: str, whole: Callable[[Path], bool], make: Callable[[Path], None]) -> Path:
    """The entry `name` of the cache, made first where it is missing; processes that want the same one wait for it.

    Args:
        name: File name; it says what the entry holds (kind, version, digest of what it is made from).
        whole: Whether the entry is there and as it should be.
        make: Makes the entry at the path given, atomically.
    """
    path = cache_folder() / name
    if not whole(path):
        with _locked(path.with_name(f"{name}.lock")):
            if not whole(path):
                make(path)
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        handle = path.open("w")
    except OSError as error:
        raise DataError(
            f"the cache folder cannot be written to ({error}): set XDG_CACHE_HOME to a folder that you may write to"
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # given back when the handle is closed, and by a process that dies
        yield
