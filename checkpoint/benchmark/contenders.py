"""What the benchmark of checkpoints compares: gradwire, torch.save, torch's distributed checkpoints, safetensors."""

import importlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.checkpoint.background import Saving, Stage
from gradwire.checkpoint.benchmark.places import Place, sync
from gradwire.checkpoint.checkpointer import Checkpointer
from gradwire.checkpoint.snapshot import read_parts
from gradwire.checkpoint.state import State
from gradwire.checkpoint.store import Store

OURS = "gradwire"
Tensors = Mapping[str, Tensor]


class Contender(ABC):
    """Saves and restores a state, with all ranks of the default group; it saves one at a time.

    Args:
        place: A place of its own, empty.
    """

    needs: str | None = None

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    def save(self, tensors: Tensors, update: int) -> None:
        """Returns once the state may change again."""

    def wait(self) -> None:  # noqa: B027 - most are durable before they return
        """Returns once what was saved is durable."""

    def rest(self) -> None:  # noqa: B027 - most have nothing left to do
        """Returns once nothing goes on behind the scenes."""

    @abstractmethod
    def restore(self, like: dict[str, Tensor], update: int) -> Tensors:
        """What was saved at an update, read as a new process would.

        Args:
            like: Tensors of the right kind, for those who load into tensors.
            update: Which.
        """

    def forget(self, update: int) -> None:
        """Remove what was saved at an update; on the first rank."""
        self.place.below(str(update)).remove()

    def close(self) -> None:  # noqa: B027 - most keep nothing
        """Give back what was kept for the next save. All ranks call it."""


class Ours(Contender):
    """Snapshots of a Checkpointer, the newest of which stays."""

    stage: Stage = "copy"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.checkpointer = self.opened()
        self._saving: Saving | None = None

    def opened(self) -> Checkpointer:
        """The store, as another process would open it."""
        return Checkpointer(self.place.url, 1, 0, group=dist.group.WORLD, stage=self.stage, keep_journal=1)

    def save(self, tensors: Tensors, update: int) -> None:
        self._saving = self.checkpointer.start(State({"model": dict(tensors)}), {"updates": update})

    def wait(self) -> None:
        assert self._saving is not None
        self._saving.wait()

    def rest(self) -> None:
        """Returns once what is no longer kept has been removed."""
        for thread in threading.enumerate():
            if thread.name.startswith("snapshot of update"):
                thread.join()

    def restore(self, like: dict[str, Tensor], update: int) -> Tensors:
        restored: Tensors = self.opened().restore(update)[0].shared["model"]
        return restored

    def files(self) -> list[str]:
        """Names of the objects that the newest snapshot consists of, beside its commit."""
        store, commit = Store.open(self.place.url), self.checkpointer.latest()
        assert commit is not None
        packs = {pack.name: None for part in read_parts(store, commit.parts) for pack in part.packs}
        return [*packs, *(ref.name for ref in commit.parts)]

    def forget(self, update: int) -> None:
        """Retention does it."""

    def close(self) -> None:
        self.checkpointer.close()


class OursWithoutCopy(Ours):
    """The same, without a copy of the state: it returns when the snapshot is durable."""

    stage: Stage = "none"


class TorchSave(Contender):
    """torch.save of the first rank, and fsync."""

    def save(self, tensors: Tensors, update: int) -> None:
        if dist.get_rank() == 0:
            with self.place.below(str(update)).written("state.pt") as file:
                torch.save(dict(tensors), file)

    def restore(self, like: dict[str, Tensor], update: int) -> Tensors:
        with self.place.below(str(update)).opened("state.pt", "rb") as file:
            restored: Tensors = torch.load(file, map_location="cpu", weights_only=True)
        return restored


class Safetensors(Contender):
    """safetensors.torch.save_file of the first rank, and fsync; what is loaded lies in the process's own memory."""

    needs = "safetensors"

    def save(self, tensors: Tensors, update: int) -> None:
        from safetensors.torch import save, save_file

        if dist.get_rank() == 0:
            place = self.place.below(str(update))
            if place.folder is None:
                with place.written("state.safetensors") as file:
                    file.write(save(dict(tensors)))
            else:
                place.make()
                save_file(dict(tensors), place.folder / "state.safetensors")
                sync(place.folder / "state.safetensors", place.folder)

    def restore(self, like: dict[str, Tensor], update: int) -> Tensors:
        from safetensors.torch import load, load_file

        place = self.place.below(str(update))
        if place.folder is not None:
            return load_file(place.folder / "state.safetensors", backend="pread")
        with place.opened("state.safetensors", "rb") as file:
            return load(file.read())


class Distributed(Contender):
    """torch.distributed.checkpoint.save, which syncs its files; it loads into tensors that are there."""

    def save(self, tensors: Tensors, update: int) -> None:
        from torch.distributed.checkpoint.state_dict_saver import save

        save(dict(tensors), storage_writer=self.writer(update))

    def restore(self, like: dict[str, Tensor], update: int) -> Tensors:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        place = self.place.below(str(update))
        reader: Any = FsspecReader(place.url) if place.folder is None else FileSystemReader(place.folder)
        load(like, storage_reader=reader)
        return like

    def writer(self, update: int) -> Any:
        """A storage writer of torch's for an update."""
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        place = self.place.below(str(update))
        return FsspecWriter(place.url) if place.folder is None else FileSystemWriter(place.folder)


class DistributedAsync(Distributed):
    """torch.distributed.checkpoint.async_save as it is."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._future: Any = None

    def stager(self) -> Any:
        """What copies the state; None leaves that to torch."""
        return None

    def save(self, tensors: Tensors, update: int) -> None:
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self._future = async_save(dict(tensors), storage_writer=self.writer(update), async_stager=self.stager())

    def wait(self) -> None:
        self._future.result()


class DistributedAsyncKept(DistributedAsync):
    """The same with a stager whose memory is kept for the next save."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self._stager = DefaultStager(StagingOptions(False, False, False, False))

    def stager(self) -> Any:
        return self._stager

    def close(self) -> None:
        self._stager.close()


_CONTENDERS: Mapping[str, type[Contender]] = {
    OURS: Ours,
    "gradwire, no copy": OursWithoutCopy,
    "torch.save": TorchSave,
    "dcp.save": Distributed,
    "dcp.async_save": DistributedAsync,
    "dcp.async_save, kept": DistributedAsyncKept,
    "safetensors": Safetensors,
}
NAMES = tuple(_CONTENDERS)


def make(name: str, place: Place) -> Contender:
    """A contender by its name, which writes to a place of its own.

    Raises:
        ImportError: it needs a package that is not installed.
    """
    kind = _CONTENDERS[name]
    if kind.needs is not None:
        importlib.import_module(kind.needs)
    return kind(place)
