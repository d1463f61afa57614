"""Sharded data parallelism (torch's FSDP2), with replicas over slow links, or with layers split among ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from gradwire.checkpoint import Wanted
from gradwire.comm import AllReduce, Topology, check_replicas
from gradwire.comm.fsdp import fsdp_hooks, local_shards
from gradwire.trainer.blocks import blocks_of
from gradwire.trainer.config.range import Range
from gradwire.trainer.errors import StrategyError
from gradwire.trainer.strategies.collective import Collective
from gradwire.trainer.strategies.exchanges import Cost, Reduced, Removable
from gradwire.trainer.strategies.sharding import Place, Watched, is_first_holder, local, portable, wanted
from gradwire.trainer.strategies.shards import GradientShards
from gradwire.trainer.strategies.tensor_plan import parallelize

Dtype = Literal["fp32", "bf16", "fp16"]
_DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class FullySharded(Collective):
    """Every rank holds a part of weights, gradients and optimizer state, and gathers blocks when it needs them.

    Zhao et al. 2023 (2304.11277), by torch's `fully_shard`. With `replicas`, each of these (the hosts, say) holds
    everything, sharded over its own ranks, and gradients are summed over the replicas along the last axis of
    `comm.topology`, with that axis's codec. With `tensor`, so many neighboring ranks split the layers of the built-in
    decoder among themselves and share one part of the batch (Shoeybi et al. 2019, 1909.08053).

    Args:
        all_reduce: Its last axis joins replicas.
        device: This rank's device.
        control: Group for the small exchanges beside the gradients (a CPU backend); the default group where None.
        replicas: Whether the last axis of the topology is one of replicas.
        tensor: Neighboring ranks that split layers.
        reshard_after_forward: Whether a block's gathered weights are given up between forward and backward.
        param_dtype: What weights are gathered and used in; their own type where None.
        reduce_dtype: What gradients are summed in; `param_dtype` where None.
        cpu_offload: Whether shards, gradients and optimizer state stay in the host's memory (CUDA only).

    Raises:
        StrategyError: the device cannot do it, or a codec is on an axis along which weights are sharded.
    """

    whole = False

    def __init__(
        self,
        all_reduce: AllReduce,
        device: torch.device,
        control: dist.ProcessGroup | None = None,
        *,
        replicas: bool = False,
        tensor: Annotated[int, Range(ge=1)] = 1,
        reshard_after_forward: bool = True,
        param_dtype: Dtype | None = None,
        reduce_dtype: Dtype | None = None,
        cpu_offload: bool = False,
    ) -> None:
        super().__init__(device, control, together=tensor)
        hosts = list(all_reduce.topology.axes.values())[-1] if replicas else 1
        self._check(all_reduce, hosts, tensor, cpu_offload=cpu_offload)
        self._all_reduce = all_reduce
        self._span = self.world_size // hosts  # ranks that hold everything together
        shape = (hosts, self._span) if tensor == 1 else (self._span // tensor, tensor)
        names = ("replica", "shard") if tensor == 1 else ("shard", "tensor")
        self._mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
        self._hosts, self._tensor = hosts, tensor
        self.layout = "shards over " + " × ".join(f"{size} ({name})" for name, size in zip(names, shape, strict=True))
        self._lane: AllReduce | None = None
        self._shards: GradientShards | None = None
        self._places: dict[nn.Parameter, list[Place]] = {}  # the modules that use each parameter
        self._how = {
            "mesh": self._mesh["shard"],
            "reshard_after_forward": reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(_dtype(param_dtype), _dtype(reduce_dtype)),
            "offload_policy": CPUOffloadPolicy() if cpu_offload else OffloadPolicy(),
        }

    def _check(self, all_reduce: AllReduce, hosts: int, tensor: int, *, cpu_offload: bool) -> None:
        if cpu_offload and self.device.type != "cuda":
            raise StrategyError(f"strategy.cpu_offload is for CUDA, and this run is on {self.device.type}")
        if tensor > 1 and (hosts > 1 or self.world_size % tensor):
            raise StrategyError(
                f"strategy.tensor={tensor} must divide the {self.world_size} ranks, and wants strategy.replicas=false"
            )
        used = list(all_reduce.topology.axes)[-1:] if hosts > 1 else []
        if odd := [axis for axis in all_reduce.codecs if axis not in used]:
            raise StrategyError(f"comm.codecs.{odd[0]}: weights are sharded along this axis, without codecs")

    def prepare(self, model: nn.Module) -> nn.Module:
        model.to(self.device)
        if self._tensor > 1:
            parallelize(model, self._mesh["tensor"])
        blocks = blocks_of(model)
        for each in [*(block for block in blocks if block is not model), model]:
            fully_shard(each, **self._how)  # type: ignore[call-overload]
        for part in _sharded_modules(model):
            part.set_gradient_divide_factor(1.0)  # the loss is divided by the global batch already
            part.set_force_sum_reduction_for_comms(True)
        if self._hosts > 1:
            self._lane = fsdp_hooks(model, self._over_replicas(self._mesh["replica"]), op="sum")
        self._model = model
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                self._places.setdefault(parameter, []).append((module, name))
        return model

    def _over_replicas(self, mesh: DeviceMesh) -> AllReduce:
        whole = self._all_reduce
        axis = list(whole.topology.axes)[-1]
        topology = Topology(**{axis: mesh.size()})
        return AllReduce(
            topology, whole.algorithm, whole.codecs, mesh.get_group(), whole.segment_mb, timeout=whole.timeout
        )

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        self._synchronize(False)
        try:
            yield
        finally:
            self._synchronize(True)

    def _synchronize(self, required: bool) -> None:
        for module in _sharded_modules(self._model):
            module.set_requires_gradient_sync(required, recurse=False)

    def _owner(self, mesh: DeviceMesh, rank: int) -> int:
        """The first replica's rank; of what is not split within layers, the first that computes with this one."""
        whole = mesh.ndim == 1 and self._tensor > 1
        return rank // self._tensor * self._tensor if whole else rank % self._span

    def unmeasurable(self) -> str | None:
        return "ranks that split layers (strategy.tensor) see parts of their gradients" if self._tensor > 1 else None

    def watch(self, parameter: nn.Parameter, see: Callable[[Tensor], None]) -> Removable:
        return Watched(parameter, self._places[parameter], see)

    def part(self, parameter: nn.Parameter) -> Tensor | None:
        gradient = parameter.grad
        if gradient is None or not is_first_holder(gradient, self.rank, self._owner):
            return None
        return local(gradient)

    def gradient_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        parts = [self.part(each) for each in parameters]
        return self.norm_of([part for part in parts if part is not None and part.numel()])

    def wanted(self, model: nn.Module) -> Wanted | None:
        return wanted(self.tensors(model))

    def portable(self, tree: Any) -> Any:
        return portable(tree, self.rank, self._owner)

    def refresh(self, model: nn.Module) -> None:
        for module in _sharded_modules(model):
            module.reshard()

    def record(self) -> str | None:
        """Of replicas, which hold the same, the first one's ranks hand out what they keep."""
        self._shards = GradientShards(list(self._model.parameters()), writes=self.rank < self._span)
        return None

    def carried(self) -> list[int]:
        if self._shards is not None:
            self._shards.keep()
        return super().carried()

    def reduced(self) -> Reduced:
        return self._recording.reduced()

    def put_back(self, reduced: Sequence[Reduced]) -> None:
        if self._shards is None:
            self.record()
        self._recording.put_back(reduced[self.rank % self._span])

    @property
    def _recording(self) -> GradientShards:
        assert self._shards is not None, "record() comes first"
        return self._shards

    def cost(self) -> Cost:
        return Cost() if self._lane is None else Cost(None, self._lane.take_traffic())

    def check_replicas(self, model: nn.Module) -> None:
        if self._hosts > 1:
            check_replicas(local_shards(model), self._mesh.get_group("replica"))


def _sharded_modules(model: nn.Module) -> Iterator[FSDPModule]:
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def _dtype(name: Dtype | None) -> torch.dtype | None:
    return None if name is None else _DTYPES[name]
