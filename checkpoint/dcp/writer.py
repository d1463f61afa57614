"""Saving through torch.distributed.checkpoint."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.dcp.parts import KEY, Path, own_tree, slice_entry, unfit, value_entry
from gradwire.checkpoint.dcp.protocol import checked_update, completed
from gradwire.checkpoint.epochs import CommitWriter, Draft
from gradwire.checkpoint.errors import CheckpointWriteError, MissingObject, UnsupportedState
from gradwire.checkpoint.known import Known
from gradwire.checkpoint.restoring import recall
from gradwire.checkpoint.snapshot import PartRef, PartWriter
from gradwire.checkpoint.store import Store


class Writer(StorageWriter):
    """Saves with `dcp.save` or `dcp.async_save`; one writer can serve all saves of a run, which then cost the least.

    A snapshot continues the store's newest history from the last update before its own.

    Args:
        url: The store: a local path or any fsspec URL with create-if-absent.
        update: Number of updates that led to the state; None where each save gives it as `checkpoint_id`.
        metrics: What was measured at this update.
        writer: Names this writer for people; host and process where None.

    Raises:
        StoreError: the URL cannot be a store, or the update is none.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        update: int | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
        writer: str | None = None,
    ) -> None:
        self._store = Store.open(os.fspath(url))
        self._update = None if update is None else checked_update(update)
        self._metrics = dict(metrics or {})
        self._writer = CommitWriter(self._store, writer or f"{socket.gethostname()}:{os.getpid()}")
        self._rank = 0
        self._known = Known()
        self._written: tuple[PartRef, PartWriter] | None = None
        self._settled = False
        self.commit: Commit | None = None  # the last one, on the coordinator

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a save; `checkpoint_id` is the update where it is given."""
        if checkpoint_id is not None:
            self._update = checked_update(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise CheckpointWriteError(
                f"{self._store.url}: ranks that save on their own make no snapshot; leave use_collectives at True"
            )
        if self._update is None:
            raise CheckpointWriteError("give the update that is saved: Writer(url, update=…) or checkpoint_id=…")
        self._rank = kwargs.get("rank", 0)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Take the store over before any rank writes, and tell all ranks which snapshot this one continues."""
        earlier = self.commit
        if not self._settled or earlier is None or earlier.update >= self._saving():
            earlier = self._before(self._saving())
            if earlier is not None:
                self._writer.continue_from(earlier)
        self._settled = False
        self._writer.claim()
        ground = _Ground(earlier, CommitLog(self._store).sequences()[-1] + 1, len(plans))
        return [replace(plan, storage_data=ground) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's part.

        Raises:
            UnsupportedState: something is neither a plain tensor nor a JSON-like value; its name is told.
            StoreError: the store did not take it.
        """
        paths = plan.planner_data if isinstance(plan.planner_data, Mapping) else {}
        values: dict[str, dict[str, Any]] = {}
        slices: dict[str, list[dict[str, Any]]] = {}
        for item in plan.items:
            name = item.index.fqn
            if item.type == WriteItemType.BYTE_IO:
                values[name] = value_entry(name, paths.get(name), _object_of(planner, item))
            else:
                slices.setdefault(name, []).append(_slice_of(planner, item, paths.get(name)))
        self._recall(plan.storage_data)
        writer = PartWriter(self._store, self._rank, self._known)
        part = writer.write({}, own_tree(slices, values))
        self._written = part, writer
        return completed([WriteResult(MetadataIndex(part.name), part.size, part)])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publish the commit.

        Raises:
            CheckpointWriteError: the slices do not make up their tensors, or another writer has taken the store over.
            StoreError: the commit was not written, or that is not known.
        """
        paths = metadata.planner_data if isinstance(metadata.planner_data, Mapping) else {}
        if problem := unfit(metadata.state_dict_metadata, paths):
            raise CheckpointWriteError(f"{self._store.url}: no snapshot was committed: {problem}")
        parts: tuple[PartRef, ...] = tuple(written.storage_data for (written,) in results)
        self.commit = self._writer.publish(
            Draft(
                reason="interval",
                clock={"updates": self._saving()},
                metrics=self._metrics,
                world_size=len(parts),
                captured={"shared": (), "local": (KEY,)},
                parts=parts,
            )
        )
        self._settled = True

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return str(checkpoint_id).isdecimal()

    def _saving(self) -> int:
        assert self._update is not None, "set_up_storage_writer comes first"
        return self._update

    def _recall(self, ground: object) -> None:
        """Know what the snapshot that this one continues has in the store."""
        written, self._written = self._written, None
        # A planner that caches plans may hand out one of an earlier save: its snapshot can be gone at any moment.
        if not isinstance(ground, _Ground) or ground.earlier is None or self._is_taken(ground.number):
            self._known.replace([])
        elif written is not None and written[0] in ground.earlier.parts and len(ground.earlier.parts) == ground.size:
            written[1].committed()
        else:
            recall(self._known, self._store, ground.earlier, self._rank, ground.size)

    def _is_taken(self, number: int) -> bool:
        try:
            CommitLog(self._store).read(number)
        except MissingObject:
            return False
        return True

    def _before(self, update: int) -> Commit | None:
        earlier = [commit for commit in CommitLog(self._store).history().ancestry if commit.update < update]
        return earlier[-1] if earlier else None


@dataclass(frozen=True)
class _Ground:
    """What the coordinator tells all ranks of a save.

    Args:
        earlier: The snapshot that it continues.
        number: The commit's own number, unless another writer takes over.
        size: How many ranks save.
    """

    earlier: Commit | None
    number: int
    size: int


def _object_of(planner: SavePlanner, item: WriteItem) -> Any:
    """What is to be stored of a thing that is no tensor; `resolve_data` would have it pickled."""
    look_up = getattr(planner, "lookup_object", None)
    if look_up is None:
        raise UnsupportedState(
            f"{item.index.fqn} is no tensor, and {type(planner).__name__} hands it out pickled, which a checkpoint "
            "does not hold: use a planner with lookup_object, such as DefaultSavePlanner"
        )
    return look_up(item.index)


def _slice_of(planner: SavePlanner, item: WriteItem, path: Path) -> dict[str, Any]:
    assert item.tensor_data is not None, "every item but BYTE_IO has it"
    name, chunk = item.index.fqn, item.tensor_data.chunk
    tensor = planner.resolve_data(item)
    if not isinstance(tensor, Tensor) or tensor.shape != chunk.sizes:
        raise UnsupportedState(f"{name}: the planner made something else of its slice of {tuple(chunk.sizes)} elements")
    return slice_entry(path, chunk.offsets, item.tensor_data.size, tensor.detach())
