"""Data parallelism: every rank holds the whole model; gradients are summed while backward runs (gradwire.comm)."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gradwire.comm import AllReduce, Choice, CommError, Overlap, Reducer, attach, check_replicas, decode
from gradwire.trainer.strategies.collective import Collective
from gradwire.trainer.strategies.exchanges import Cost, Reduced

_CARRIED = ("residuals", "factors", "arrears", "in_flight")  # what is not a function of the reduced gradients


class DataParallel(Collective):
    """Every rank holds the whole model, computes its share of the global batch and applies the same bits.

    Args:
        all_reduce: How gradients are summed over the ranks.
        device: This rank's device.
        bucket_mb: Size of the flat buckets that gradients travel in, MiB.
        control: Group for the small exchanges beside the gradients (a CPU backend); the default group where None.
        overlap: Under what gradients travel: `backward`, or until the end of that of the next `update`, and come late.
        recorded: Whether `record` will be asked for, on a single process as well.
    """

    def __init__(
        self,
        all_reduce: AllReduce,
        device: torch.device,
        bucket_mb: float = 25.0,
        control: dist.ProcessGroup | None = None,
        overlap: Overlap = "backward",
        recorded: bool = False,
    ) -> None:
        super().__init__(device, control)
        self._all_reduce = all_reduce
        self._bucket_mb = bucket_mb
        self._overlap: Overlap = overlap
        self._recorded = recorded
        self._reducer: Reducer | None = None

    def prepare(self, model: nn.Module) -> nn.Module:
        model.to(self.device)
        self._reducer = attach(
            model,
            self._all_reduce,
            op="sum",
            bucket_mb=self._bucket_mb,
            recorded=self._recorded,
            overlap=self._overlap,
        )
        return model

    @property
    def late(self) -> bool:
        return self._overlap == "update"

    @property
    def reducer(self) -> Reducer:
        """The reducer that `prepare` attached."""
        assert self._reducer is not None, "prepare(model) comes first"
        return self._reducer

    def accumulate(self) -> AbstractContextManager[None]:
        return self.reducer.no_sync()

    def carry(self, counts: Sequence[int]) -> None:
        self.reducer.carry(counts)

    def carried(self) -> list[int]:
        return self.reducer.carried

    def settle(self, kept: bool) -> None:
        self.reducer.settle(kept)

    def rescale(self, factor: float) -> None:
        self.reducer.rescale(factor)

    def drain(self) -> None:
        self.reducer.drain()

    def carries(self) -> bool:
        return any(name in _CARRIED for name in self.reducer.state_dict())

    def record(self) -> str | None:
        try:
            self.reducer.record(True)
        except CommError as error:
            return str(error)
        return None

    def reduced(self) -> Reduced:
        dtypes = tuple(bucket.flat.dtype for bucket in self.reducer.buckets)
        return Reduced(tuple(self.reducer.take_encoded()), dtypes, self.reducer.take_presence())

    def give_back(self, reduced: Reduced) -> None:
        self.reducer.give_back(reduced.shares)

    def put_back(self, reduced: Sequence[Reduced]) -> None:
        flats = [torch.empty_like(bucket.gradients) for bucket in self.reducer.buckets]
        for index, flat in enumerate(flats):
            decode([share for each in reduced for share in each.shares if share.bucket == index], flat)
        self.reducer.install(flats, reduced[0].presence)

    def cost(self) -> Cost:
        exposed = self.reducer.take_exposed()
        return Cost(exposed if self.world_size > 1 else None, self.reducer.take_traffic())

    def tolerances(self) -> Mapping[str, float]:
        return self.reducer.tolerances

    def fall_back(self, axis: str) -> None:
        self.reducer.fall_back(axis)

    def choices(self) -> Sequence[Choice]:
        return self.reducer.choices()

    def state_dict(self) -> dict[str, Any]:
        return self.reducer.state_dict()

    def position(self) -> dict[str, Any]:
        return self.reducer.position()

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        try:
            self.reducer.load_state_dict(state)
        except CommError:
            return False
        return True

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> str | None:
        try:
            self.reducer.load_state_dicts(states)
        except CommError as error:
            return str(error)
        return None

    def check_replicas(self, model: nn.Module) -> None:
        check_replicas(model)
