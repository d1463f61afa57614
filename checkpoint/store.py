"""A store: named, immutable objects at any fsspec URL."""

import errno
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from gradwire.checkpoint.errors import (
    CheckpointError,
    DamagedCheckpoint,
    MissingObject,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from gradwire.checkpoint.files import UNREADABLE
from gradwire.checkpoint.local import LocalObjects
from gradwire.checkpoint.remote import RemoteObjects, offers_create
from gradwire.checkpoint.retry import Retry
from gradwire.checkpoint.source import Source

FOLDERS = ("packs", "parts", "commits", "tags")
_RANK = r"(?:0|[1-9][0-9]{0,5})"
_DIGITS = "0[0-3][0-9]{18}"  # of numbers that a run can reach
_NAME = re.compile(
    rf"(?:packs|parts)/[0-9a-f]{{64}}|commits/(?!0{{20}}){_DIGITS}|tags/[A-Za-z0-9][A-Za-z0-9._-]{{0,99}}"
    rf"|journal/(?:{_DIGITS}/){{2}}{_DIGITS}-{_RANK}-of-{_RANK}"
)
_NUMBER = re.compile(_DIGITS)


class Objects(Protocol):
    """What a place for objects does; errors are OSErrors (or the client library's own)."""

    @property
    def near(self) -> bool: ...
    def create(self, name: str, data: memoryview) -> None: ...
    def create_all(self, pairs: Sequence[tuple[str, memoryview]]) -> list[str]: ...
    def replace(self, name: str, data: memoryview) -> None: ...
    def size(self, name: str) -> int: ...
    def modified(self, name: str) -> float | None: ...
    def read(self, name: str, length: int) -> bytes: ...
    def opened(self, name: str, length: int) -> AbstractContextManager[Source]: ...
    def names(self, folder: str) -> list[str]: ...
    def remove(self, name: str) -> None: ...
    def confirm(self, folder: str) -> None: ...
    def sweep(self, folder: str) -> None: ...
    def remove_folder(self, folder: str) -> None: ...


class Store:
    """Objects in `packs/`, `parts/`, `commits/`, `tags/` and `journal/`; whatever has no name of theirs is not seen.

    Args:
        url: Where the store is, for messages.
        objects: The place for its objects.
    """

    def __init__(self, url: str, objects: Objects) -> None:
        self.url = url
        self._objects = objects

    @classmethod
    def open(cls, url: str, retry: Retry = Retry()) -> "Store":  # noqa: B008 - frozen
        """The store at a local path or any fsspec URL. Reads and writes nothing yet.

        Raises:
            StoreError: no such protocol here, a remote path with `..`, or a file system without create-if-absent.
        """
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        try:
            filesystem, root = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise StoreError(f"{url}: {error}") from error
        if isinstance(filesystem, LocalFileSystem):
            return cls(url, LocalObjects(Path(root)))
        if ".." in root.split("/"):
            raise StoreError(f"{url}: a path with '..' is not followed in an object store; write it out")
        if not offers_create(filesystem):
            raise StoreError(
                f"{url}: {type(filesystem).__name__} cannot create an object only if it is absent, which keeps two "
                "writers apart; use a local path, s3://, gs:// or abfs://"
            )
        return cls(url, RemoteObjects(filesystem, root, retry))

    @property
    def near(self) -> bool:
        """Whether its objects are files, of which bytes are read faster than most codings give them back."""
        return self._objects.near

    def put_new(self, name: str, data: bytes) -> bool:
        """Create an object; False where the name is taken by other bytes (own bytes are a repeated request's success).

        Raises:
            StoreError, StoreFull, StoreUnavailable: it was not written, or that is not known.
        """
        view = memoryview(data)
        try:
            with self._acting("write", name):
                self._objects.create(name, view)
        except FileExistsError:
            return self._holds(name, view)
        return True

    def put_all(self, pairs: Sequence[tuple[str, bytes]]) -> list[str]:
        """Create several objects and make them durable at once; the names that are taken by other bytes.

        Raises:
            StoreError, StoreFull, StoreUnavailable: some were not written, or that is not known.
        """
        views = {name: memoryview(data) for name, data in pairs}
        for name in views:
            _check_name(name)
        what = f"write {next(iter(views))} and {len(views) - 1} more" if len(views) > 1 else f"write {''.join(views)}"
        with self._failing(what):
            taken = self._objects.create_all(list(views.items()))
        return [name for name in taken if not self._holds(name, views[name])]

    def put_content(self, folder: str, data: bytes | memoryview, digest: str) -> bool:
        """Store bytes under their SHA-256; whether they are new here. An object of that name is written again: it may
        be damaged, and its time tells a clean-up in another process that it is in use.

        Raises:
            StoreError, StoreFull, StoreUnavailable: it was not written, or that is not known.
        """
        name, view = f"{folder}/{digest}", memoryview(data)
        try:
            with self._acting("write", name):
                self._objects.create(name, view)
        except FileExistsError:
            with self._acting("replace", name):
                self._objects.replace(name, view)
            return False
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Write an object that exists, in place of its bytes.

        Raises:
            StoreError, StoreFull, StoreUnavailable: it was not written, or that is not known.
        """
        with self._acting("replace", name):
            self._objects.replace(name, memoryview(data))

    def check_create(self, name: str, data: bytes) -> None:
        """Prove that creating an existing object is refused here.

        Args:
            name: An object that exists.
            data: Its bytes.

        Raises:
            StoreError: it was not refused: this place cannot keep two writers apart.
        """
        try:
            with self._acting("write", name):
                self._objects.create(name, memoryview(data))
        except FileExistsError:
            return
        raise StoreError(
            f"{self.url} overwrites an object that it was told to create only if absent; two writers could destroy "
            "each other's snapshots there. Use a local path or a store that honors conditional writes"
        )

    def get(self, name: str, limit: int) -> bytes:
        """An object's bytes.

        Raises:
            MissingObject: it is not there.
            DamagedCheckpoint: it is longer than `limit` bytes (nothing longer is read), or its disk cannot read it.
            StoreError, StoreUnavailable: it could not be read.
        """
        with self._reading(name):
            try:
                data = self._objects.read(name, limit + 1)
            except FileNotFoundError as error:
                raise MissingObject(f"{self.url}: {name} is missing") from error
        if len(data) > limit:
            raise DamagedCheckpoint(f"{self.url}: {name} is longer than the {limit} bytes it may have")
        return data

    @contextmanager
    def opened(self, name: str, length: int) -> Iterator[Source]:
        """An object, to be read piece by piece. Its first `length` bytes are there, and whether there are more.

        Raises:
            MissingObject: it is not there.
            DamagedCheckpoint: its disk cannot read it, now or later.
            StoreError, StoreUnavailable: it could not be read, now or later.
        """
        with ExitStack() as stack:
            with self._reading(name):
                try:
                    source = stack.enter_context(self._objects.opened(name, length + 1))
                except FileNotFoundError as error:
                    raise MissingObject(f"{self.url}: {name} is missing") from error
            yield _Telling(source, lambda: self._reading(name))

    def folders(self, folder: str) -> list[str]:
        """Numbered folders in a folder, sorted: `journal/<20 digits>` in `journal`, and the next level in those.

        Raises:
            StoreError, StoreUnavailable: the listing failed. It never counts as empty.
        """
        with self._failing(f"list {folder}"):
            found = self._objects.names(folder)
        return sorted(f"{folder}/{last}" for last in found if _NUMBER.fullmatch(last))

    def list(self, folder: str) -> list[str]:
        """Names of the objects in a folder, sorted, as they are now; what is not an object of a store is left out.

        Raises:
            StoreError, StoreUnavailable: the listing failed. It never counts as empty.
        """
        with self._failing(f"list {folder}"):
            found = self._objects.names(folder)
        return sorted(name for last in found if _NAME.fullmatch(name := f"{folder}/{last}"))

    def modified(self, name: str) -> float | None:
        """When an object was written, in seconds since 1970 by the store's own clock; None where it does not tell.

        Raises:
            MissingObject: it is not there.
            StoreError, StoreUnavailable: the store did not answer.
        """
        with self._acting("look at", name):
            try:
                return self._objects.modified(name)
            except FileNotFoundError as error:
                raise MissingObject(f"{self.url}: {name} is missing") from error

    def size(self, name: str) -> int:
        """Number of an object's bytes. Raises as `modified` does."""
        with self._acting("look at", name):
            try:
                return self._objects.size(name)
            except FileNotFoundError as error:
                raise MissingObject(f"{self.url}: {name} is missing") from error

    def delete(self, name: str) -> None:
        """Remove an object; one that is gone already is no error.

        Raises:
            StoreError, StoreUnavailable: it could not be removed.
        """
        with self._acting("delete", name), suppress(FileNotFoundError):
            self._objects.remove(name)

    def confirm(self, folder: str) -> None:
        """Make all objects in a folder durable, also those whose writer was killed before they were.

        Raises:
            StoreError, StoreFull, StoreUnavailable: that is not certain.
        """
        with self._failing(f"make {folder} durable"):
            self._objects.confirm(folder)

    def sweep(self) -> None:
        """Remove what killed writers left unfinished. Only a writer that has just taken over may do so.

        Raises:
            StoreError, StoreUnavailable: a leftover could not be removed.
        """
        journal = [folder for base in self.folders("journal") for folder in self.folders(base)]
        for folder in (*FOLDERS, *journal):
            with self._failing(f"remove leftovers from {folder}"):
                self._objects.sweep(folder)

    def remove_folder(self, folder: str) -> None:
        """Remove a folder of the journal with what was left unfinished in it, unless it holds objects.

        Raises:
            StoreError, StoreUnavailable: it could not be removed.
        """
        with self._failing(f"remove {folder}"):
            self._objects.sweep(folder)
            self._objects.remove_folder(folder)

    def remove_empty(self, folder: str) -> None:
        """Remove a folder of the journal if there is nothing in it. Raises as `remove_folder` does."""
        with self._failing(f"remove {folder}"):
            self._objects.remove_folder(folder)

    def _holds(self, name: str, data: memoryview) -> bool:
        with self._reading(name):
            return self._objects.read(name, len(data) + 1) == data

    @contextmanager
    def _acting(self, action: str, name: str) -> Iterator[None]:
        """Keep to the names of a store's objects, and give every failure its class; FileExistsError passes."""
        _check_name(name)
        with self._failing(f"{action} {name}", passing=(CheckpointError, FileExistsError)):
            yield

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """As `_acting`; a file that is there and cannot be read is damaged, which says nothing about all others."""
        with self._acting("read", name):
            try:
                yield
            except OSError as error:
                if self._objects.near and error.errno in UNREADABLE:
                    raise DamagedCheckpoint(f"{self.url}: {name} is there and cannot be read: {error}") from error
                raise

    @contextmanager
    def _failing(self, action: str, passing: tuple[type[Exception], ...] = (CheckpointError,)) -> Iterator[None]:
        """Give every failure its class."""
        try:
            yield
        except passing:
            raise
        except Exception as error:
            raise _failure(f"{self.url}: cannot {action}", error) from error


class _Telling:
    """A source whose failures have their class."""

    def __init__(self, source: Source, acting: Callable[[], AbstractContextManager[None]]) -> None:
        self._source = source
        self._acting = acting

    def read_into(self, target: memoryview, start: int) -> int:
        with self._acting():
            return self._source.read_into(target, start)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise DamagedCheckpoint(f"{name!r} is not the name of an object of a store")


def _failure(what: str, error: Exception) -> StoreError:
    number = error.errno if isinstance(error, OSError) else None
    what = f"{what}: {str(error) or type(error).__name__}"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"{what}. Free space there, or choose another URL")
    if isinstance(error, PermissionError) or "Credentials" in type(error).__name__ or number == errno.EROFS:
        return StoreError(f"{what}. Check that you may read, write, list, link and delete there, and the credentials")
    if isinstance(error, FileNotFoundError):
        return StoreError(f"{what}. Check that the bucket or folder exists")
    if isinstance(error, NotADirectoryError | IsADirectoryError | FileExistsError):
        return StoreError(f"{what}. A store needs a folder of its own")
    if number == errno.ENOTSUP:
        return StoreError(f"{what}. The file system must offer hard links")
    return StoreUnavailable(what)


def content_name(data: bytes | memoryview) -> str:
    """The SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
