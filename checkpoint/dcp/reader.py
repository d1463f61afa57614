"""Loading through torch.distributed.checkpoint."""

import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.dcp.parts import Slice, Value, described
from gradwire.checkpoint.dcp.protocol import checked_update, completed
from gradwire.checkpoint.errors import CheckpointError
from gradwire.checkpoint.ranks import Ranks
from gradwire.checkpoint.reading import reading
from gradwire.checkpoint.restoring import Restorer
from gradwire.checkpoint.snapshot import read_parts
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.unpacking import read_scattered

_READ_BYTES = 256 * 2**20


class Reader(StorageReader):
    """Loads with `dcp.load` what `Writer` saved, at any number of ranks; every byte is verified.

    A load that fails leaves the tensors that were to be loaded half written.

    Args:
        url: The store.
        update: Which snapshot; None for the newest whole one.
        group: The process group that loads, so that its first rank chooses for all; without it each rank looks by
            itself, and a load in which a newer snapshot comes between them fails.

    Raises:
        StoreError: the URL cannot be a store, or the update is none.
    """

    def __init__(
        self, url: str | os.PathLike[str], update: int | None = None, *, group: dist.ProcessGroup | None = None
    ) -> None:
        self._store = Store.open(os.fspath(url))
        self._update = None if update is None else checked_update(update)
        self._restorer = Restorer([self._store], Ranks(group))
        self._slices: dict[tuple[str, tuple[int, ...]], Slice] = {}
        self._values: dict[str, Any] = {}
        self._failure: CheckpointError | None = None
        self.commit: Commit | None = None  # the one that is loaded

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a load; `checkpoint_id` is the update where it is given."""
        if checkpoint_id is not None:
            self._update = checked_update(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The snapshot's metadata, rebuilt from its parts. Where that fails, its first use raises the error, because
        `dcp.load` would put another in its place here."""
        try:
            loaded, found = self._restorer.restore("latest" if self._update is None else self._update, _described)
            self.commit, self._failure = found.commit, None
            return self._take(*loaded)
        except CheckpointError as error:
            self._failure = error
            return _Unreadable(error)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._failure is not None:
            raise self._failure

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        assert self.commit is not None, "read_metadata comes first"
        return LoadPlan(plan.items, self.commit.sequence, plan.planner_data)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Make sure that all ranks load the same snapshot."""
        found = sorted({plan.storage_data for plan in plans})
        if len(found) > 1:
            raise CheckpointError(
                f"{self._store.url}: a newer snapshot came while ranks looked for the newest (commits "
                f"{', '.join(map(str, found))}); load again, or give Reader the update or the group"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan asks for.

        Raises:
            NoCheckpoint: the snapshot was removed meanwhile.
            DamagedCheckpoint: bytes are missing or altered.
            StoreError: a pack could not be read.
        """
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, _for_planner(self._values[item.storage_index.fqn]))
        wanted = [
            (self._slices[_place(item.storage_index)], item) for item in plan.items if item.type == LoadItemType.TENSOR
        ]
        assert self.commit is not None, "read_metadata comes first"
        with reading(self._store, self.commit):
            for batch in _batches(wanted):
                self._read(batch, planner)
        return completed(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return str(checkpoint_id).isdecimal()

    def _take(self, slices: Sequence[Slice], values: Sequence[Value], metadata: Metadata) -> Metadata:
        self._slices = {(piece.name, piece.offsets): piece for piece in slices if piece.stored.nbytes}
        self._values = {value.name: value.value for value in values}
        return metadata

    def _read(self, batch: Sequence[tuple[Slice, ReadItem]], planner: LoadPlanner) -> None:
        """Read slices, and copy from them what each item asks for."""
        slices = list({id(piece): piece for piece, _ in batch}.values())
        tensors = read_scattered(self._store, [(piece.part.packs, piece.stored) for piece in slices])
        found = {id(piece): tensor for piece, tensor in zip(slices, tensors, strict=True)}
        for piece, item in batch:
            source = found[id(piece)]
            for axis, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                source = source.narrow(axis, start, length)
            target: Tensor = planner.resolve_tensor(item).detach()
            target.copy_(source)
            planner.commit_tensor(item, target)


class _Unreadable(Metadata):
    """Stands for metadata that could not be read; raises the reason at its first use."""

    def __init__(self, error: CheckpointError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def _described(store: Store, commit: Commit) -> tuple[list[Slice], list[Value], Metadata]:
    where = f"{store.url}: update {commit.update}"
    return described(read_parts(store, commit.parts), where)


def _place(index: MetadataIndex) -> tuple[str, tuple[int, ...]]:
    return index.fqn, tuple(index.offset or ())


def _batches(wanted: Sequence[tuple[Slice, ReadItem]]) -> Iterator[list[tuple[Slice, ReadItem]]]:
    """What is read at once: about 256 MiB of slices in the order of their packs, so that few packs are read twice."""
    batch: list[tuple[Slice, ReadItem]] = []
    size = 0
    for piece, item in sorted(wanted, key=lambda each: _position(each[0])):
        if batch and size + piece.stored.nbytes > _READ_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((piece, item))
        size += piece.stored.nbytes
    if batch:
        yield batch


def _position(piece: Slice) -> tuple[int, int, int]:
    first = piece.stored.chunks[0]  # there is one: nothing is asked of a slice without elements
    return piece.part.rank, first.pack, first.offset


def _for_planner(value: Any) -> io.BytesIO:
    """A value as planners take it: what torch.save makes of it; in memory only, and of nothing but plain data."""
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data
