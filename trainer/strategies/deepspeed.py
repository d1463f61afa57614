"""ZeRO by DeepSpeed's engine under the trainer: stages 1 to 3, and offload."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.checkpoint import Wanted
from gradwire.comm import AllReduce, check_replicas
from gradwire.trainer.errors import StrategyError
from gradwire.trainer.strategies.collective import Collective
from gradwire.trainer.strategies.deepspeed_engine import check, not_elementwise, start
from gradwire.trainer.strategies.deepspeed_settings import read, stage_of, value_of
from gradwire.trainer.strategies.exchanges import Reduced
from gradwire.trainer.strategies.partitioned_state import PartitionedState
from gradwire.trainer.strategies.sharding import check_dtypes
from gradwire.trainer.strategies.shards import GradientShards
from gradwire.trainer.strategies.stretches import Bounds, Stretch, portable, wanted
from gradwire.trainer.strategies.zero import partitions_of


class DeepSpeed(Collective):
    """ZeRO (Rajbhandari et al. 2020, 1910.02054) by DeepSpeed: optimizer state is split among the ranks (stage 1),
    gradients too (2), weights too (3), or kept in the host's memory (offload).

    DeepSpeed makes the passes, splits weights and gradients and moves them. Its flat partitions are what our optimizer
    steps, once their gradients were checked and clipped as under every strategy. Stage 0 splits nothing and is
    `DataParallel`.

    Args:
        all_reduce: Native, without codecs: DeepSpeed reduces gradients itself.
        device: This rank's device.
        control: Group for the small exchanges beside the gradients (a CPU backend); the default group where None.
        config: DeepSpeed's configuration, or the JSON or YAML file that it is in. A configured run may repeat batch
            sizes, clipping, optimizer and schedule there.

    Raises:
        StrategyError: DeepSpeed is not installed, or its configuration cannot be.
    """

    def __init__(
        self,
        all_reduce: AllReduce,
        device: torch.device,
        control: dist.ProcessGroup | None = None,
        *,
        config: dict[str, Any] | str | None = None,
    ) -> None:
        super().__init__(device, control)
        self._config = read(config)
        check(self._config)
        self._stage = stage_of(self._config)
        self.whole = self._stage < 3
        self._unsettled = False  # whether there are gradients that belong to no update so far
        self._kept: GradientShards | None = None
        if all_reduce.codecs or all_reduce.algorithm != "native":
            raise StrategyError(f"at stage {self._stage} DeepSpeed reduces gradients itself, without comm's codecs")

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        if reason := not_elementwise(type(optimizer).__name__):
            raise StrategyError(reason)
        self._tensors = list(model.state_dict())
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        every = dict(model.named_parameters(remove_duplicate=False))
        self._first = {name: self._names[parameter] for name, parameter in every.items()}
        self._engine = start(model, optimizer, self._config, self.device)
        self._engine.set_gradient_accumulation_boundary(True)
        self._partitions = partitions_of(self._engine.optimizer, self._stage, self.rank)
        self._places = {place.name: place for place in self._partitions.places()}
        self._stretches = self._measured()

    def _measured(self) -> dict[str, Stretch]:
        """What every rank holds of every parameter, by all names that it has. A collective."""
        everyone: list[dict[str, tuple[Bounds, int, int]]] = [{} for _ in range(self.world_size)]
        mine = {name: (place.bounds, place.partition, place.start) for name, place in self._places.items()}
        dist.all_gather_object(everyone, mine, group=self._control)
        digest = hashlib.sha256(repr([sorted(each.items()) for each in everyone]).encode()).hexdigest()
        self.layout = f"partitions of ZeRO's stage {self._stage}, {digest[:8]}"
        first = {
            name: Stretch(place.shape, tuple(each[name][0] for each in everyone), self.rank)
            for name, place in self._places.items()
        }
        return {name: first[own] for name, own in self._first.items() if own in first}

    def carry(self, counts: Sequence[int]) -> None:
        if self._unsettled:  # passes that were no update's
            self._partitions.reset()
        self._partitions.begin()
        super().carry(counts)

    def backward(self, loss: Tensor) -> None:
        """The engine's, with what its own forward prepares."""
        self._unsettled = True
        self._engine.optimizer.clear_backward_seen_flag()
        self._engine._backward_prologue()
        self._engine.backward(loss, scale_wrt_gas=False)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        self._engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            self._engine.set_gradient_accumulation_boundary(True)

    def carried(self) -> list[int]:
        """Gradients are summed, and DeepSpeed has divided them by the number of ranks."""
        averaged = value_of(self._config, "gradient_allreduce_op") != "sum"
        self._partitions.finish(self.world_size if averaged else 1)
        if self._kept is not None:
            self._kept.keep()
        return super().carried()

    def part(self, parameter: nn.Parameter) -> Tensor | None:
        place = self._places[self._names[parameter]]
        gradient = self._partitions.flats[place.partition].grad
        return None if gradient is None else gradient[place.start : place.start + self._stretches[place.name].size]

    def gradient_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        return self.norm_of([flat.grad for flat in self._partitions.flats if flat.grad is not None])

    def settle(self, kept: bool) -> None:
        self._unsettled = False
        if kept:
            self._partitions.publish()
        self._partitions.reset()

    def refresh(self, model: nn.Module) -> None:
        self._partitions.publish()

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        live = model.state_dict()
        return {name: self._stretch(name) if name in self._stretches else live[name] for name in self._tensors}

    def _stretch(self, name: str) -> Tensor:
        place, size = self._places[self._first[name]], self._stretches[name].size
        flat = self._partitions.flats[place.partition] if place.frozen is None else place.frozen
        return flat.detach()[place.start : place.start + size]

    def placed(self, name: str, value: Any, like: Tensor | None) -> Any:
        return self._stretches[name].of(value) if name in self._stretches else value

    @torch.no_grad()
    def load_model(self, model: nn.Module, saved: Mapping[str, Tensor]) -> None:
        live = self.tensors(model)
        if odd := sorted(saved.keys() ^ live.keys()):
            raise RuntimeError(f"they differ in their tensors: {', '.join(odd[:5])}")
        check_dtypes(saved, live)
        for name, tensor in live.items():
            shape = self._stretches[name].shape if name in self._stretches else tuple(tensor.shape)
            if tuple(saved[name].shape) != shape:
                raise RuntimeError(f"{name} is {tuple(saved[name].shape)} there and {shape} here")
            tensor.copy_(self.placed(name, saved[name], tensor))
        self.refresh(model)

    def portable(self, tree: Any) -> Any:
        return portable(tree, self._stretches)

    def optimizer_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
        return self._state().of(optimizer)

    def load_optimizer_state(
        self, model: nn.Module, optimizer: Optimizer, saved: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._state().load(optimizer, saved)

    def _state(self) -> PartitionedState:
        trained = {name: place for name, place in self._places.items() if place.frozen is None}
        return PartitionedState(self._partitions.flats, trained, self._stretches)

    def wanted(self, model: nn.Module) -> Wanted | None:
        return wanted(self._stretches)

    def record(self) -> str | None:
        self._kept = GradientShards(self._partitions.flats, writes=True)
        return None

    def reduced(self) -> Reduced:
        assert self._kept is not None, "record() comes first"
        return self._kept.reduced()

    def put_back(self, reduced: Sequence[Reduced]) -> None:
        if self._kept is None:
            self.record()
        assert self._kept is not None
        self._kept.put_back(reduced[self.rank])

    def check_replicas(self, model: nn.Module) -> None:
        if self._stage < 3:
            check_replicas(model)
