"""FSDP2 with its replicas joined by the project's all-reduce: hybrid sharding whose slow axis may be compressed."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from gradwire.comm.all_reduce import AllReduce
from gradwire.comm.errors import AttachError, CollectiveError
from gradwire.comm.replicas import broadcast_parameters
from gradwire.comm.works import Op, check_op


def fsdp_hooks(model: nn.Module, all_reduce: AllReduce, op: Op = "mean") -> AllReduce:
    """Reduce the gradients of a model sharded by `fully_shard` over replicas too. A collective over the replicas.

    For H hosts of L ranks take `mesh = init_device_mesh(device, (H, L), mesh_dim_names=("replicate", "shard"))`, shard
    the model over `mesh["shard"]`, and give `AllReduce(group=mesh.get_group("replicate"))`. A rank holds one of L
    shards; each backward sums its gradient with the same shard's on the other hosts, after FSDP's reduce-scatter. The
    gradients are those of FSDP's own hybrid sharding over the whole mesh.

    Shards and buffers are set to the first replica's now. On CUDA the all-reduce runs on FSDP's stream beside backward;
    on the CPU FSDP waits for it. Accumulate under `set_requires_gradient_sync(False)`. As with FSDP alone, all ranks
    have to use the same modules in a backward.

    Args:
        model: Materialized, and sharded over one dimension.
        all_reduce: Over the ranks that hold the same shard.
        op: Over replicas; FSDP's mean over the shards comes before. "mean" is hybrid sharding's own. "sum" is for a
            loss already divided by the global batch, with `set_gradient_divide_factor(1.0)` on every sharded module
            (and on gloo, which multiplies nothing itself, `set_force_sum_reduction_for_comms(True)`).

    Returns:
        What reduces over the replicas, for its telemetry; to be closed in the end.

    Raises:
        AttachError: The model is not sharded, over several dimensions, or not materialized; or an axis has a
            compression with error feedback.
        ReplicaMismatch: The ranks of `all_reduce` hold different shards or models.
        CollectiveError: A peer died or did not answer in time.
    """
    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    device = _check(model, bool(modules))
    check_op(op, next(model.parameters()))
    _check_codecs(all_reduce)
    lane = all_reduce.private(device)
    broadcast_parameters(local_shards(model), lane.group)
    for name, module in modules:
        try:
            module.set_all_reduce_hook(_Replicas(lane, op, name or "the model"))
        except ValueError as error:  # several groups of parameters
            raise AttachError(f"{name or 'the model'} cannot be given an all-reduce: {error}") from error
    return lane


def local_shards(model: nn.Module) -> nn.Module:
    """This rank's shards and buffers as a plain module on the same memory.

    For `check_replicas(local_shards(model), group)`, where `group` are the ranks with the same shard.
    """
    shards = nn.Module()
    for name, parameter in model.named_parameters():
        here = parameter.detach()
        if isinstance(here, DTensor):
            place = f", shard {here.device_mesh.get_local_rank() + 1} of {here.device_mesh.size()}"
            name, here = name + place, here.to_local()
        shards.register_buffer(_key(f"{name}{'' if parameter.requires_grad else ', frozen'}"), here)
    for name, buffer in model.named_buffers():
        shards.register_buffer(_key(name), buffer)
    return shards


def _key(name: str) -> str:
    return name.replace(".", "/")  # modules keep dots for themselves


def _check(model: nn.Module, sharded: bool) -> torch.device:
    """The device of the shards."""
    if not sharded:
        raise AttachError("the model is not sharded: call torch.distributed.fsdp.fully_shard on it first")
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            if parameter.requires_grad:
                raise AttachError(f"{name} is trained and not sharded: FSDP would not reduce its gradient")
        elif parameter.device_mesh.ndim != 1:
            raise AttachError(
                f"{name} lies on a mesh of {parameter.device_mesh.ndim} dimensions; expected one, over which it is "
                "sharded: give fully_shard mesh['shard'], and the all-reduce the group of the other dimension"
            )
        if parameter.device.type == "meta":
            raise AttachError(f"{name} is on the meta device: materialize the weights first")
    return next(parameter.device for parameter in model.parameters() if isinstance(parameter, DTensor))


def _check_codecs(all_reduce: AllReduce) -> None:
    for axis, codec in all_reduce.codecs.items():
        if codec.feedback:
            raise AttachError(
                f"{codec.name} on the axis {axis} has error feedback, which counts only if the update is kept: that "
                "hangs on the other shards' gradients too, which are not known here. Take a codec without, such as int8"
            )


@dataclass(frozen=True, eq=False)
class _Replicas:
    """Sums what FSDP's reduce-scatter left on this rank: the gradients of one sharded module, one after another."""

    all_reduce: AllReduce
    op: Op
    module: str

    def __call__(self, gradients: Tensor) -> None:
        if gradients.is_cuda:  # FSDP frees it on the stream of the reduce-scatter, and this is another one
            gradients.record_stream(torch.cuda.current_stream(gradients.device))
        try:
            self.all_reduce(gradients, self.op)
        except CollectiveError as error:
            raise CollectiveError(f"the gradients of {self.module}: {error}") from error
