"""A disk in memory: it knows what was done to it and what of that is durable, and it fails where it is told to.

The model is POSIX's, at its least kind. A file's bytes are durable once the file is fsynced, and a name once its
folder is, whatever the file was. What is not durable may be there or not after a power cut, each piece for itself, in
any order. An fsync of a file that failed has lost the bytes, and a later one that succeeds does not bring them back (as
Linux does it); an fsync of a folder that failed may be repeated.
"""

import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

Kind = Literal[
    *("create", "write", "sync", "close", "link", "rename", "unlink", "make_folder", "remove_folder", "sync_folder"),
    *("read", "names", "size", "modified"),
]
NAMES = frozenset(("create", "link", "rename", "unlink", "make_folder", "remove_folder"))
SECONDS = 0.75
FIRST_FILE = 1_000_000  # numbers of open files that the operating system does not hand out


@dataclass(frozen=True)
class Operation:
    """One operation, as it was asked for.

    Args:
        kind: What.
        path: Of the file, folder or name.
        target: The second name of a link or rename.
        inode: The file meant.
        data: Bytes written.
        failed: Whether it raised.
    """

    kind: Kind
    path: str
    target: str = ""
    inode: int = 0
    data: bytes = b""
    failed: bool = False

    @property
    def folders(self) -> set[str]:
        """Those whose names it changes."""
        changed = {"link": (self.target,), "rename": (self.path, self.target)}.get(self.kind, (self.path,))
        return {_parent(path) for path in changed}


@dataclass(frozen=True)
class File:
    """What is in a file.

    Args:
        data: As it is read.
        durable: What of it survives a power cut.
        lost: Whether an fsync failed: what was written before will never be durable.
    """

    data: bytes = b""
    durable: bytes = b""
    lost: bool = False
    modified: float = 0.0


@dataclass
class Contents:
    """Names and files; a folder is a name of inode 0.

    Args:
        names: As they are seen.
        durable: As they are after a power cut that loses all it can.
        pending: What was done to names and is not durable.
        files: By inode.
        time: Seconds since 1970; some pass with every file that is made or written.
        ordered: Whether an fsync of anything makes all changes of names before it durable, as file systems with a
            journal do; POSIX promises none of it.
    """

    names: dict[str, int] = field(default_factory=lambda: {"/": 0})
    durable: dict[str, int] = field(default_factory=lambda: {"/": 0})
    pending: list[Operation] = field(default_factory=list)
    files: dict[int, File] = field(default_factory=dict)
    ordered: bool = False
    time: float = field(default_factory=time.time)

    @classmethod
    def with_folder(cls, folder: str, ordered: bool = False) -> "Contents":
        """A disk that has this folder, durably."""
        parts = folder.strip("/").split("/")
        names = {"/": 0} | {"/" + "/".join(parts[: end + 1]): 0 for end in range(len(parts))}
        return cls(names, dict(names), ordered=ordered)

    def copy(self) -> "Contents":
        return Contents(
            dict(self.names), dict(self.durable), list(self.pending), dict(self.files), self.ordered, self.time
        )

    def apply(self, operation: Operation) -> None:
        """Do what an operation does; one that failed only does its harm."""
        inode, file = operation.inode, self.files.get(operation.inode, File())
        self.time += SECONDS * (operation.kind in ("create", "write"))
        if operation.kind == "sync":
            kept = file.durable if operation.failed or file.lost else file.data
            self.files[inode] = replace(file, durable=kept, lost=file.lost or operation.failed)
            if self.ordered and not operation.failed:
                self._settle_all()
        elif operation.kind == "write":
            self.files[inode] = replace(file, data=file.data + operation.data, modified=self.time)
        elif operation.failed:
            return
        elif operation.kind == "sync_folder":
            self._settle_all() if self.ordered else self._settle(operation.path)
        elif operation.kind in NAMES:
            if operation.kind == "create":
                self.files[inode] = File(modified=self.time)
            rename(self.names, operation)
            self.pending.append(operation)

    def _settle(self, folder: str) -> None:
        for operation in self.pending:
            if folder in operation.folders:
                rename(self.durable, operation)
        self.pending = [operation for operation in self.pending if folder not in operation.folders]

    def _settle_all(self) -> None:
        for operation in self.pending:
            rename(self.durable, operation)
        self.pending = []

    def digest(self) -> str:
        """Tells contents apart by all that a later reader or power cut could see."""
        seen = hashlib.sha256()
        for label, names in (("names", self.names), ("durable", self.durable)):
            for path, inode in sorted(names.items()):
                file = self.files.get(inode, File())
                seen.update(repr((label, path, file.data, file.durable, file.lost)).encode())
        seen.update(repr([(each.kind, each.path, each.target) for each in self.pending]).encode())
        return seen.hexdigest()


def rename(names: dict[str, int], operation: Operation) -> None:
    """Change names as an operation does; where a name is not there (its own making was lost), as far as that goes."""
    if operation.kind in ("create", "make_folder"):
        names[operation.path] = operation.inode
    elif operation.kind in ("link", "rename"):
        names[operation.target] = operation.inode
    if operation.kind in ("rename", "unlink", "remove_folder"):
        names.pop(operation.path, None)


Hook = Callable[[int, Operation], None]


class Disk:
    """A file system of a process: gradwire.checkpoint's Files on contents in memory.

    Args:
        contents: What is on it; changed in place.
        hook: Called before each operation with its number; what it raises, the operation raises. A write that fails
            has written half.
    """

    def __init__(self, contents: Contents | None = None, hook: Hook | None = None) -> None:
        self.contents = contents or Contents()
        self.hook = hook
        self.log: list[Operation] = []
        self._open: dict[int, tuple[str, int]] = {}
        self._reading: dict[int, int] = {}
        self._last_file = FIRST_FILE
        self._lock = threading.RLock()

    def create(self, path: Path) -> int:
        inode, file = self._act("create", str(path)).inode, self._new_file()
        self._open[file] = str(path), inode
        return file

    def write(self, file: int, data: memoryview) -> int:
        self._act_on("write", file, bytes(data))
        return len(data)

    def sync(self, file: int) -> None:
        self._act_on("sync", file)

    def close(self, file: int) -> None:
        if self._reading.pop(file, None) is None:
            self._act_on("close", file)
            del self._open[file]

    def link(self, source: Path, target: Path) -> None:
        self._act("link", str(source), str(target))

    def rename(self, source: Path, target: Path) -> None:
        self._act("rename", str(source), str(target))

    def unlink(self, path: Path) -> None:
        self._act("unlink", str(path))

    def make_folder(self, path: Path) -> None:
        self._act("make_folder", str(path))

    def remove_folder(self, path: Path) -> None:
        self._act("remove_folder", str(path))

    def sync_folder(self, path: Path) -> None:
        self._act("sync_folder", str(path))

    def is_folder(self, path: Path) -> bool:
        return self.contents.names.get(str(path)) == 0

    def is_mount(self, path: Path) -> bool:
        return str(path) == "/"

    def exists(self, path: Path) -> bool:
        return str(path) in self.contents.names

    def names(self, path: Path) -> list[str]:
        self._act("names", str(path))
        with self._lock:
            return self._below(str(path))

    def size(self, path: Path) -> int:
        return len(self.contents.files[self._act("size", str(path)).inode].data)

    def modified(self, path: Path) -> float:
        return self.contents.files[self._act("modified", str(path)).inode].modified

    def read(self, path: Path, length: int) -> bytes:
        return self.contents.files[self._act("read", str(path)).inode].data[:length]

    def open(self, path: Path) -> int:
        inode, file = self._act("read", str(path)).inode, self._new_file()
        self._reading[file] = inode
        return file

    def read_into(self, file: int, target: memoryview, start: int) -> int:
        piece = self.contents.files[self._reading[file]].data[start : start + len(target)]
        target[: len(piece)] = piece
        return len(piece)

    def _new_file(self) -> int:
        with self._lock:
            self._last_file += 1
            return self._last_file

    def _act_on(self, kind: Kind, file: int, data: bytes = b"") -> None:
        path, inode = self._open[file]
        self._act(kind, path, inode=inode, data=data)

    def _act(self, kind: Kind, path: str, target: str = "", inode: int = 0, data: bytes = b"") -> Operation:
        operation = Operation(kind, path, target, inode, data)
        with self._lock:
            number = len(self.log)
            self.log.append(operation)
        try:
            if self.hook:
                self.hook(number, operation)  # not locked: another process may act meanwhile
        except OSError:
            with self._lock:
                failed = replace(operation, data=data[: len(data) // 2], failed=True)
                self.log[number] = failed
                self.contents.apply(failed)
            raise
        with self._lock:
            try:
                operation = replace(operation, inode=inode or self._find(operation))
            except OSError:
                self.log[number] = replace(operation, kind="names", failed=True)  # it did nothing
                raise
            self.log[number] = operation
            self.contents.apply(operation)
            return operation

    def _find(self, operation: Operation) -> int:
        """The inode that an operation is about; raises what the operating system would."""
        kind, path = operation.kind, operation.path
        if kind in ("create", "make_folder"):
            self._expect_absent(path)
            return max(self.contents.files, default=0) + 1 if kind == "create" else 0
        if kind in ("names", "sync_folder", "remove_folder"):
            self._expect_folder(path)
            if kind == "remove_folder" and self._below(path):
                raise _error(errno.ENOTEMPTY, path)
            return 0
        inode = self.contents.names.get(path)
        if inode is None:
            self._expect_folder(_parent(path))
            raise _error(errno.ENOENT, path)
        if inode == 0:
            raise _error(errno.EISDIR, path)
        if kind == "link":
            self._expect_absent(operation.target)
        return inode

    def _below(self, path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        return [
            name[len(start) :]
            for name in self.contents.names
            if name.startswith(start) and name != start and "/" not in name[len(start) :]
        ]

    def _expect_absent(self, path: str) -> None:
        self._expect_folder(_parent(path))
        if path in self.contents.names:
            raise _error(errno.EEXIST, path)

    def _expect_folder(self, path: str) -> None:
        inode = self.contents.names.get(path)
        if inode != 0:
            raise _error(errno.ENOENT if inode is None else errno.ENOTDIR, path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
