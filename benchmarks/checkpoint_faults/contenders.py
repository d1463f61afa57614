"""Who saves: gradwire.checkpoint through its public interface, and what one would use in its place.

A contender's session is one process: it lives until it is killed, and the next one finds only what is on the disk.
"""

import io
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem as dcp_files

from benchmarks.checkpoint_faults.disk import Disk
from benchmarks.checkpoint_faults.states import same, tensors_at

FOLDER = Path("/runs/one")


class Session(Protocol):
    """One process."""

    def save(self, update: int) -> None:
        """Returns once the snapshot of this update counts as saved; raises what the contender raises."""

    def restore(self) -> int | None:
        """The update whose state came back bit by bit; None where nothing is there.

        Raises:
            Altered: something else came back.
            Exception: whatever the contender raises.
        """

    def verify(self) -> list[str]:
        """What is wrong with what is stored."""

    def expects(self, error: Exception) -> bool:
        """Whether the contender may raise this."""

    def end(self) -> None:
        """Stop what goes on beside."""


class Altered(Exception):  # noqa: N818
    """A restored state that was never saved: the one failure that nobody notices."""


def checked(state: dict[str, Any], what: str) -> int:
    """The update of a state. Raises Altered where it is not that update's to the bit."""
    update = int(state["step"]) if "step" in state else -1
    if update < 0 or not same(state, tensors_at(update)):
        raise Altered(f"{what} came back altered")
    return update


class _Stream(io.RawIOBase):
    """An open file of a simulated disk, as Python's open() would give it below its buffer."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        if disk.exists(path):
            disk.unlink(path)  # opening for writing empties the file: nothing of it is left
        self._file = disk.create(path)
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written = self._disk.write(self._file, memoryview(data).cast("B"))
        self._written += written
        return written

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if (offset, whence) != (0, io.SEEK_CUR):
            raise io.UnsupportedOperation("a file that is written from beginning to end")
        return self._written

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self._disk.close(self._file)


def opened(disk: Disk, path: Path) -> io.BufferedWriter:
    """A file opened for writing, buffered as Python's open() does."""
    return io.BufferedWriter(_Stream(disk, path))


def make_folder(disk: Disk, folder: Path) -> None:
    for path in (*reversed(folder.parents), folder):
        if not disk.exists(path):
            disk.make_folder(path)


def read(disk: Disk, path: Path) -> io.BytesIO:
    return io.BytesIO(disk.read(path, 2**40))


class TorchSave:
    """torch.save to one file, over the one before."""

    name = "torch.save"

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._path = FOLDER / "checkpoint.pt"
        self._target = self._path

    def save(self, update: int) -> None:
        make_folder(self._disk, FOLDER)
        with opened(self._disk, self._target) as file:
            torch.save(tensors_at(update), file)
            self._finish(file)
        self._publish()

    def restore(self) -> int | None:
        if not self._disk.exists(self._path):
            return None
        return checked(torch.load(read(self._disk, self._path)), "the checkpoint")

    def verify(self) -> list[str]:
        return []

    def expects(self, error: Exception) -> bool:
        return True

    def end(self) -> None: ...

    def _finish(self, file: io.BufferedWriter) -> None: ...

    def _publish(self) -> None: ...


class TorchSaveRenamed(TorchSave):
    """torch.save to a new file, fsync, and a rename over the one before."""

    name = "torch.save + fsync + rename"

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._target = self._path.with_suffix(".tmp")

    def _finish(self, file: io.BufferedWriter) -> None:
        file.flush()
        self._disk.sync(file.fileno())

    def _publish(self) -> None:
        self._disk.rename(self._target, self._path)


class TorchSaveDurable(TorchSaveRenamed):
    """The same, and an fsync of the folder."""

    name = "torch.save + fsync + rename + fsync of the folder"

    def _publish(self) -> None:
        super()._publish()
        self._disk.sync_folder(FOLDER)


class _DcpFiles(dcp_files.FileSystem):
    """The file system of torch's distributed checkpoints, on a simulated disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Generator[Any, None, None]:
        with opened(self._disk, Path(path)) if "w" in mode else read(self._disk, Path(path)) as stream:
            yield stream

    def rename(self, path: Any, new_path: Any) -> None:
        self._disk.rename(Path(path), Path(new_path))

    def mkdir(self, path: Any) -> None:
        make_folder(self._disk, Path(path))

    def exists(self, path: Any) -> bool:
        return self._disk.exists(Path(path))

    def rm_file(self, path: Any) -> None:
        self._disk.unlink(Path(path))

    def ls(self, path: Any) -> list[str]:
        return [str(Path(path) / name) for name in self._disk.names(Path(path))]


class TorchDcp:
    """torch.distributed.checkpoint: a folder for each update, its newest one with metadata restored."""

    name = "torch DCP"

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def save(self, update: int) -> None:
        writer = dcp.FileSystemWriter(str(FOLDER / f"step-{update}"), sync_files=True)
        writer.fs = _DcpFiles(self._disk)
        with self._fsync(), _failures():
            dcp.save(tensors_at(update), storage_writer=writer, no_dist=True)

    def restore(self) -> int | None:
        newest = max(self._updates(), default=None)
        if newest is None:
            return None
        state = {name: torch.zeros_like(value) for name, value in tensors_at(newest).items()}
        reader = dcp.FileSystemReader(str(FOLDER / f"step-{newest}"))
        reader.fs = _DcpFiles(self._disk)
        with _failures():
            dcp.load(state, storage_reader=reader, no_dist=True)
        found = checked(state, f"step-{newest}")
        if found != newest:
            raise Altered(f"step-{newest} came back as update {found}")
        return found

    def verify(self) -> list[str]:
        return []

    def expects(self, error: Exception) -> bool:
        return True

    def end(self) -> None: ...

    def _updates(self) -> Iterator[int]:
        if self._disk.exists(FOLDER):
            for name in self._disk.names(FOLDER):
                if self._disk.exists(FOLDER / name / ".metadata"):
                    yield int(name.removeprefix("step-"))

    @contextmanager
    def _fsync(self) -> Iterator[None]:
        """Lead the library's os.fsync to the simulated disk."""
        real = SimpleNamespace(**{name: getattr(os, name) for name in dir(os)} | {"fsync": self._disk.sync})
        with mock.patch.object(dcp_files, "os", real):
            yield


@contextmanager
def _failures() -> Iterator[None]:
    """The library's failures as exceptions: they are no Exceptions there."""
    try:
        yield
    except dcp.CheckpointException as error:
        raise RuntimeError(str(error).strip().rpartition("\n")[2][:200]) from error


PEERS: tuple[type[TorchSave] | type[TorchDcp], ...] = (TorchSave, TorchSaveRenamed, TorchSaveDurable, TorchDcp)
