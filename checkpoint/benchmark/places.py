"""Where contenders write: a folder, or a place that fsspec knows."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem


class Place:
    """A folder of a contender's own.

    Args:
        url: Its URL, or path.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._filesystem, self._root = url_to_fs(url)

    @property
    def folder(self) -> Path | None:
        """The folder, if it is one of this host."""
        return Path(self._root) if isinstance(self._filesystem, LocalFileSystem) else None

    def below(self, name: str) -> "Place":
        return Place(f"{self.url.rstrip('/')}/{name}")

    def make(self) -> None:
        self._filesystem.makedirs(self._root, exist_ok=True)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        if self._filesystem.exists(self._root):
            self._filesystem.rm(self._root, recursive=True)

    def sizes(self) -> dict[str, int]:
        """Bytes of the files below, by name; what goes away meanwhile is left out."""
        if self.folder is not None:
            return dict(_sizes(self.folder))
        self._filesystem.invalidate_cache()
        return {name: int(info["size"]) for name, info in self._filesystem.find(self._root, detail=True).items()}

    @contextmanager
    def written(self, name: str) -> Iterator[IO[bytes]]:
        """A new file, durable afterwards together with its name."""
        self.make()
        with self.opened(name, "wb") as file:
            yield file
        if self.folder is not None:
            sync(self.folder / name, self.folder)

    def opened(self, name: str, mode: str) -> Any:
        """A file below, as `open` gives it."""
        if self.folder is not None:
            return (self.folder / name).open(mode)
        return self._filesystem.open(f"{self._root}/{name}", mode)


def sync(*paths: Path) -> None:
    """Make what files hold, and the names in folders, durable."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                yield str(path), path.stat().st_size
        except FileNotFoundError:
            continue
