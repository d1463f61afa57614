"""Objects as files of a local (or mounted) file system."""

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_TEMPORARY = ".tmp-"


class LocalObjects:
    """Files below a folder; a file appears under its name whole and durable, or not at all.

    A new file is written under a temporary name, fsynced, given its name by link(2), which fails where the name is
    taken, and its folder is fsynced. Errors are OSErrors.

    Args:
        root: The folder; made when first written to.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, name: str, data: memoryview) -> None:
        """Write a new object. Raises FileExistsError where there is one already."""
        path = self._root / name
        with self._temporary(path.parent, data) as temporary:
            os.link(temporary, path)
        _fsync_folder(path.parent)

    def create_all(self, pairs: Sequence[tuple[str, memoryview]]) -> list[str]:
        """Write new objects with one fsync of each folder; the names that were taken already, which stay as they were."""
        taken = []
        with ExitStack() as stack:
            written = [
                (name, stack.enter_context(self._temporary((self._root / name).parent, data))) for name, data in pairs
            ]
            for name, temporary in written:
                try:
                    os.link(temporary, self._root / name)
                except FileExistsError:
                    taken.append(name)
        for folder in {(self._root / name).parent for name, _ in pairs}:
            _fsync_folder(folder)
        return taken

    def replace(self, name: str, data: memoryview) -> None:
        """Write an object in place of the present one, if any."""
        path = self._root / name
        with self._temporary(path.parent, data) as temporary:
            temporary.replace(path)
        _fsync_folder(path.parent)

    def size(self, name: str) -> int:
        return (self._root / name).stat().st_size

    def modified(self, name: str) -> float:
        """When it was written, in seconds since 1970."""
        return (self._root / name).stat().st_mtime

    def read(self, name: str, length: int) -> bytes:
        """At most the first `length` bytes."""
        with (self._root / name).open("rb") as file:
            return file.read(min(length, os.fstat(file.fileno()).st_size))

    def names(self, folder: str) -> list[str]:
        """Last parts of the names in a folder; none where the folder does not exist."""
        try:
            return os.listdir(self._root / folder)  # noqa: PTH208 - names, not paths
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        (self._root / name).unlink()

    def sweep(self, folder: str) -> None:
        """Remove temporary files that killed writers left."""
        for name in self.names(folder):
            if name.startswith(_TEMPORARY):
                with suppress(FileNotFoundError):
                    (self._root / folder / name).unlink()

    def remove_folder(self, folder: str) -> None:
        """Remove a folder that is empty; any other stays."""
        with suppress(FileNotFoundError):
            try:
                (self._root / folder).rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise

    @contextmanager
    def _temporary(self, folder: Path, data: memoryview) -> Iterator[Path]:
        _make_folder(folder)
        path = folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _fsync_folder(folder.parent)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
