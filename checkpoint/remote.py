"""Objects on a file system of fsspec: object stores, and memory."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

from gradwire.checkpoint.retry import Result, Retry
from gradwire.checkpoint.source import BytesSource

_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")  # of s3fs, adlfs, gcsfs, and memory


class FileSystem(Protocol):
    """What is used of fsspec's AbstractFileSystem."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> Any: ...
    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes: ...
    def info(self, path: str) -> dict[str, Any]: ...
    def ls(self, path: str, detail: bool = True) -> list[Any]: ...
    def rm_file(self, path: str) -> None: ...
    def invalidate_cache(self, path: str | None = None) -> None: ...


def offers_create(filesystem: Any) -> bool:
    """Whether the file system has a create-if-absent of its own: fsspec's base class only checks, then writes."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    own = type(filesystem)
    if isinstance(filesystem, AsyncFileSystem):
        return (
            own._pipe_file is not AsyncFileSystem._pipe_file and "mode" in inspect.signature(own._pipe_file).parameters
        )
    return own.pipe_file is not AbstractFileSystem.pipe_file and "mode" in inspect.signature(own.pipe_file).parameters


def _seconds(time: object) -> float | None:
    """A file system's word for a time as seconds since 1970."""
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return None
    if isinstance(time, datetime):
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return float(time) if isinstance(time, int | float) else None


class RemoteObjects:
    """Objects below a prefix; each is put in one request, so that it appears whole or not at all.

    Args:
        filesystem: Where they are.
        root: The prefix.
        retry: How transient errors are met.
    """

    near = False

    def __init__(self, filesystem: FileSystem, root: str, retry: Retry) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._retry = retry

    def create(self, name: str, data: memoryview) -> None:
        """Write a new object. Raises FileExistsError where there is one already (after a retry: perhaps our own)."""
        self._try(lambda: self._filesystem.pipe_file(self._path(name), bytes(data), mode="create"))

    def create_all(self, pairs: Sequence[tuple[str, memoryview]]) -> list[str]:
        """Write new objects, one after the other; the names that were taken already (after a retry: perhaps by us)."""
        taken = []
        for name, data in pairs:
            try:
                self.create(name, data)
            except FileExistsError:
                taken.append(name)
        return taken

    def replace(self, name: str, data: memoryview) -> None:
        """Write an object in place of the present one, if any."""
        self._try(lambda: self._filesystem.pipe_file(self._path(name), bytes(data)))

    def size(self, name: str) -> int:
        self._filesystem.invalidate_cache(self._path(name))
        return int(self._try(lambda: self._filesystem.info(self._path(name)))["size"])

    def modified(self, name: str) -> float | None:
        """When it was written, in seconds since 1970; None where the file system does not tell."""
        self._filesystem.invalidate_cache(self._path(name))
        info = self._try(lambda: self._filesystem.info(self._path(name)))
        return next((time for key in _TIMES if (time := _seconds(info.get(key))) is not None), None)

    def read(self, name: str, length: int) -> bytes:
        """At most the first `length` bytes. An answer that is shorter than the object is asked for again."""
        return self._try(lambda: self._read_once(name, length))

    @contextmanager
    def opened(self, name: str, length: int) -> Iterator[BytesSource]:
        """At most the first `length` bytes, to be read piece by piece: they are asked for at once."""
        yield BytesSource(self.read(name, length))

    def _read_once(self, name: str, length: int) -> bytes:
        size = self.size(name)
        expected = min(length, size)
        if expected == 0:
            return b""
        end = None if length >= size else length
        data = self._filesystem.cat_file(self._path(name), start=None if end is None else 0, end=end)
        if len(data) != expected:
            raise OSError(f"{name}: {len(data)} of {expected} bytes arrived")
        return data

    def names(self, folder: str) -> list[str]:
        """Last parts of the names in a folder, as they are now; none where nothing has that prefix."""

        def listing() -> list[str]:
            self._filesystem.invalidate_cache(self._path(folder))
            return [
                str(path).rstrip("/").rpartition("/")[2] for path in self._filesystem.ls(path_of_folder, detail=False)
            ]

        path_of_folder = self._path(folder)
        try:
            return self._try(listing)
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        self._try(lambda: self._filesystem.rm_file(self._path(name)))

    def confirm(self, folder: str) -> None:
        """Nothing to do: what can be read is durable."""

    def sweep(self, folder: str) -> None:
        """Nothing to do: a put that was cut off leaves nothing behind."""

    def remove_folder(self, folder: str) -> None:
        """Nothing to do: a prefix without objects is nothing."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _try(self, request: Callable[[], Result]) -> Result:
        return self._retry.run(request)
