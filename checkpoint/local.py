"""Objects as files of a local (or mounted) file system."""

import errno
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gradwire.checkpoint.files import Files, RealFiles, patiently
from gradwire.checkpoint.source import FileSource

_TEMPORARY = ".tmp-"
_REMOVALS = 3  # of a folder under a writer's hands, until that is no accident
_NO_FOLDER_SYNC = frozenset((errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS))


class LocalObjects:
    """Files below a folder; a file appears under its name whole and durable, or not at all.

    A new file is written under a temporary name, fsynced, given its name by link(2), which fails where the name is
    taken, and its folder is fsynced. Errors are OSErrors.

    Args:
        root: The folder; made when first written to.
        files: The file system's operations.
    """

    near = True

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self._root = root
        self._files: Files = files or RealFiles()
        self._lasting: set[Path] = set()
        self._removing: Path | None = None

    def create(self, name: str, data: memoryview) -> None:
        """Write a new object. Raises FileExistsError where there is one already; that one is durable then."""
        path = self._root / name
        try:
            self._refuse_present(path)
            with self._temporary(path.parent, data) as temporary:
                self._files.link(temporary, path)
        except FileExistsError:
            self._confirm(path.parent)
            raise
        self._files.sync_folder(path.parent)

    def create_all(self, pairs: Sequence[tuple[str, memoryview]]) -> list[str]:
        """Write new objects with one fsync of each folder; the names that were taken already, whose objects stay."""
        taken = [name for name, _ in pairs if self._files.exists(self._root / name)]
        with ExitStack() as stack:
            written = [
                (name, stack.enter_context(self._temporary((self._root / name).parent, data)))
                for name, data in pairs
                if name not in taken
            ]
            for name, temporary in written:
                try:
                    self._files.link(temporary, self._root / name)
                except FileExistsError:
                    taken.append(name)
        for folder in dict.fromkeys((self._root / name).parent for name, _ in pairs):
            self._confirm(folder)
        return taken

    def replace(self, name: str, data: memoryview) -> None:
        """Write an object in place of the present one, if any."""
        path = self._root / name
        with self._temporary(path.parent, data) as temporary:
            self._files.rename(temporary, path)
        self._files.sync_folder(path.parent)

    def size(self, name: str) -> int:
        return self._files.size(self._root / name)

    def modified(self, name: str) -> float:
        """When it was written, in seconds since 1970."""
        return self._files.modified(self._root / name)

    def read(self, name: str, length: int) -> bytes:
        """At most the first `length` bytes."""
        return patiently(lambda: self._files.read(self._root / name, length))

    @contextmanager
    def opened(self, name: str, length: int) -> Iterator[FileSource]:
        """An object of about `length` bytes, to be read piece by piece."""
        file = patiently(lambda: self._files.open(self._root / name))
        try:
            yield FileSource(self._files, file)
        finally:
            self._files.close(file)

    def names(self, folder: str) -> list[str]:
        """Last parts of the names in a folder; none where the folder does not exist."""
        try:
            return self._files.names(self._root / folder)
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        """Remove an object. What was removed before from another folder is durable then: it never comes back alone."""
        path = self._root / name
        if self._removing is not None and self._removing != path.parent:
            with suppress(FileNotFoundError):
                self._files.sync_folder(self._removing)
        self._removing = path.parent
        self._files.unlink(path)

    def sweep(self, folder: str) -> None:
        """Remove temporary files that killed writers left; a folder of such a name is none of theirs, and stays."""
        for name in self.names(folder):
            if name.startswith(_TEMPORARY):
                with suppress(FileNotFoundError, IsADirectoryError):
                    self._files.unlink(self._root / folder / name)

    def remove_folder(self, folder: str) -> None:
        """Remove a folder that is empty; any other stays."""
        try:
            self._files.remove_folder(self._root / folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _refuse_present(self, path: Path) -> None:
        """Spare the writing of an object that is there; link(2) decides where two write at once."""
        if self._files.exists(path):
            raise FileExistsError(errno.EEXIST, "File exists", str(path))

    def confirm(self, folder: str) -> None:
        """Make what is in a folder durable: whoever put it there may have been killed before that."""
        self._confirm(self._root / folder)

    def _confirm(self, folder: Path) -> None:
        self._prepare(folder)
        self._files.sync_folder(folder)

    @contextmanager
    def _temporary(self, folder: Path, data: memoryview) -> Iterator[Path]:
        path = folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            self._write_below(folder, path, data)
            yield path
        finally:
            with suppress(OSError):  # it is gone, or stays for the next writer's sweep
                self._files.unlink(path)

    def _write_below(self, folder: Path, path: Path, data: memoryview) -> None:
        """Write a file; where a clean-up removes its empty folder just now, that is made again."""
        for _ in range(_REMOVALS):
            self._prepare(folder)
            with suppress(FileNotFoundError):
                self._write(path, data)
                return
        self._prepare(folder)
        self._write(path, data)

    def _write(self, path: Path, data: memoryview) -> None:
        file = self._files.create(path)
        try:
            while data:
                data = data[self._files.write(file, data) :]
            self._files.sync(file)
        finally:
            self._files.close(file)

    def _prepare(self, folder: Path) -> None:
        """Make a folder and those above it durably; those that exist may be of a writer killed before it fsynced."""
        if folder not in self._lasting or not self._files.is_folder(folder):
            self._make(folder)
            self._lasting.add(folder)

    def _make(self, folder: Path) -> None:
        if self._files.is_mount(folder) or folder.parent == folder:
            return
        self._make(folder.parent)
        if self._files.is_folder(folder):
            self._confirm_name(folder)
            return
        with suppress(FileExistsError):  # another rank's, or a file: then writing below it fails and says so
            self._files.make_folder(folder)
        self._files.sync_folder(folder.parent)

    def _confirm_name(self, folder: Path) -> None:
        try:
            self._files.sync_folder(folder.parent)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:  # folders far above the store may not be ours to fsync
                raise
