"""Attaching a reducer to a module: what is checked, made equal and hooked."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from gradwire.comm import compressions, postscript
from gradwire.comm.all_reduce import AllReduce
from gradwire.comm.buckets import Slot, lay_out
from gradwire.comm.buffers import BufferBroadcast
from gradwire.comm.delayed import DelayedReducer
from gradwire.comm.errors import AttachError
from gradwire.comm.group import control_device, own_group
from gradwire.comm.postscript import Postscript
from gradwire.comm.reducer import Observer, Reducer
from gradwire.comm.replicas import broadcast_parameters
from gradwire.comm.sparse import SparseParameter, sparse_names
from gradwire.comm.works import Op, check_op

Overlap = Literal["backward", "update"]
"""What hides a reduction: the backward pass that makes the gradients, or the whole next update."""

_FIRST_BUCKET = 1 << 20  # bytes; small, so that sending begins early in backward
_LEAST_BUCKETS = 10  # a module is cut this often, or there would be little left to overlap with
_SMALL_BUCKET = 4 << 20  # bytes; a smaller module is cut into four


def attach(
    module: nn.Module,
    all_reduce: AllReduce,
    op: Op = "mean",
    bucket_mb: float = 25.0,
    broadcast_buffers: bool = True,
    observer: Observer | None = None,
    recorded: bool = False,
    overlap: Overlap = "backward",
) -> Reducer:
    """Reduce the gradients of `module` over the ranks in every backward from now on. A collective.

    Training code stays as it is: after `loss.backward()` returns, `p.grad` is the reduced gradient. Parameters and
    buffers are set to the first rank's now; buffers again before every training forward. Call the module itself
    (`module(x)`), not its `forward`. A module trained by a single process is left alone.

    Args:
        module: On one device, with everything that will be trained marked `requires_grad`.
        all_reduce: Between whom and how.
        op: "mean" is what torch's DDP gives; "sum" for a loss already divided by the global batch.
        bucket_mb: Size at which a bucket of gradients is sent, MiB; less for small modules and the first bucket.
        broadcast_buffers: Whether buffers follow the first rank's.
        observer: Called with the parameter names and the flat local gradient (read only, any layout with zeros between)
            of each bucket before it is reduced, on every rank.
        recorded: Whether a single process shall have buckets too, so that its gradients can be recorded and installed.
        overlap: Under what gradients travel: "backward" is the one that computes them. With "update" they travel until
            the end of the next one as well, and come one update late; see `DelayedReducer`.

    Raises:
        AttachError: Nothing to train, several devices, or attached already; sparse gradients that are to come late.
        ReplicaMismatch: The ranks' modules differ.
        CollectiveError: A peer died or did not answer in time.
    """
    parameters = list(module.named_parameters())
    trainable = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    device, sparse = _check(module, trainable), sparse_names(module)
    _check_overlap(overlap, sparse)
    check_op(op, trainable[0][1])
    if bucket_mb <= 0:
        raise AttachError(f"bucket_mb is {bucket_mb}; expected a size in MiB above 0")
    lane = all_reduce.private(device)
    broadcast_parameters(module, lane.group)
    if lane.size == 1 and observer is None and not recorded and overlap == "backward":
        return _install(module, Reducer(lane, None, op, (), (), (), None), None, ())
    dense = [each for each in trainable if each[0] not in sparse]
    limits, tail = _limits(dense, bucket_mb), _tail(dense, device, lane)
    buckets = lay_out(dense, limits, tail)
    compressions.prepare(lane.codecs.values(), buckets)
    lane.tune([bucket.flat.nbytes for bucket in buckets], device)
    control = _control_group(lane, device)
    frozen = [(name, parameter) for name, parameter in parameters if not parameter.requires_grad]
    if overlap == "update":
        reducer: Reducer = DelayedReducer(lane, control, op, (buckets, lay_out(dense, limits, tail)), frozen, observer)
    else:
        by_rows = [SparseParameter(*each) for each in trainable if each[0] in sparse]
        reducer = Reducer(lane, control, op, buckets, by_rows, frozen, observer)
    buffers = BufferBroadcast(module, lane.group) if broadcast_buffers and lane.size > 1 else None
    return _install(module, reducer, buffers, [parameter for name, parameter in trainable if name in sparse])


def _check(module: nn.Module, trainable: list[tuple[str, nn.Parameter]]) -> torch.device:
    """The device of everything in the module."""
    if not trainable:
        raise AttachError("the module has no parameter with requires_grad: there is nothing to reduce")
    hooks = [
        hook
        for owner in (*module.modules(), *module.parameters())
        for name in ("_forward_pre_hooks", "_post_accumulate_grad_hooks")
        for hook in (getattr(owner, name, None) or {}).values()
    ]
    if any(isinstance(hook, _Hook) for hook in hooks):
        raise AttachError("the module, or a part of it, is attached already: call detach() on its reducer first")
    devices = {parameter.device for parameter in module.parameters()}
    if len(devices) > 1 or devices == {torch.device("meta")}:
        found = ", ".join(sorted(map(str, devices)))
        raise AttachError(f"parameters are on {found}; expected one device, and none of them 'meta'")
    return devices.pop()


def _check_overlap(overlap: str, sparse: set[str]) -> None:
    if overlap not in get_args(Overlap):
        raise AttachError(f"overlap is {overlap!r}; expected one of {', '.join(get_args(Overlap))}")
    if overlap == "update" and sparse:
        raise AttachError(
            f"{', '.join(sorted(sparse))} has sparse gradients, which cannot come one update late: create the "
            "embedding with sparse=False, or use overlap='backward'"
        )


def _limits(parameters: list[tuple[str, nn.Parameter]], bucket_mb: float) -> tuple[int, int]:
    """Bytes at which the first and the later buckets are full."""
    nbytes = sum(parameter.nbytes for _, parameter in parameters)
    share = max(nbytes // _LEAST_BUCKETS, min(nbytes // 4, _SMALL_BUCKET))
    limit = min(int(bucket_mb * (1 << 20)), max(share, _FIRST_BUCKET))
    return min(_FIRST_BUCKET, limit), limit


def _tail(dense: list[tuple[str, nn.Parameter]], device: torch.device, lane: AllReduce) -> int:
    """Elements behind the gradients of the last bucket; its dtype is not known yet, so all must do."""
    fits = all(Postscript.fits(parameter.dtype, device, lane.size) for _, parameter in dense)
    return postscript.SIZE if fits and not lane.codecs else 0


def _control_group(lane: AllReduce, device: torch.device) -> dist.ProcessGroup | None:
    """A group that carries small CPU tensors, so that the host never waits for the accelerator to read them."""
    if lane.size == 1 or control_device(lane.group).type == "cpu":
        return lane.group
    return own_group(lane.group, device, backend="gloo")


def _install(
    module: nn.Module, reducer: Reducer, buffers: BufferBroadcast | None, sparse: tuple[()] | list[nn.Parameter]
) -> Reducer:
    reducer.keep([module.register_forward_pre_hook(_BeforeForward(reducer, buffers))])
    if reducer.buckets or sparse:
        reducer.keep([module.register_forward_hook(_AfterForward(reducer))])
    slots = [slot for bucket in reducer.buckets for slot in bucket.slots]
    reducer.keep([_after_accumulation(slot.parameter, _GradientArrived(reducer, slot)) for slot in slots])
    reducer.keep([_after_accumulation(parameter, _SparseGradientArrived(reducer)) for parameter in sparse])
    return reducer


def _after_accumulation(parameter: nn.Parameter, hook: "_Hook") -> RemovableHandle:
    handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    assert isinstance(handle, RemovableHandle)
    return handle


def _ignore(*_: object) -> None:
    """What a copied module has in place of its hooks: copies are not attached."""


class _Hook:
    """Base of our hooks; a copied or stored module gets `_ignore` instead."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing_instead, ()


def _nothing_instead() -> Any:
    return _ignore


@dataclass(frozen=True, eq=False)
class _BeforeForward(_Hook):
    reducer: Reducer
    buffers: BufferBroadcast | None

    @_disable_dynamo
    def __call__(self, module: nn.Module, _: Any) -> None:
        if _within_backward():  # a checkpoint computes again
            return
        self.reducer.recover()
        if self.buffers is not None and module.training and self.reducer.synchronizing and torch.is_grad_enabled():
            self.buffers()


@dataclass(frozen=True, eq=False)
class _AfterForward(_Hook):
    reducer: Reducer

    @_disable_dynamo
    def __call__(self, module: nn.Module, _: Any, outputs: Any) -> None:
        if torch.is_grad_enabled() and not _within_backward():
            for tensor in _tensors(outputs):
                if tensor.grad_fn is not None:
                    tensor.register_hook(self._output_gradient_arrived)  # type: ignore[no-untyped-call]

    def _output_gradient_arrived(self, _: Tensor) -> None:
        self.reducer.backward_begins()


@dataclass(frozen=True, eq=False)
class _GradientArrived(_Hook):
    reducer: Reducer
    slot: Slot

    def __call__(self, _: Tensor) -> None:
        self.reducer.gradient_arrived(self.slot)


@dataclass(frozen=True, eq=False)
class _SparseGradientArrived(_Hook):
    reducer: Reducer

    def __call__(self, _: Tensor) -> None:
        self.reducer.sparse_gradient_arrived()


def _within_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """All tensors in what a forward returned: nested containers and dataclasses."""
    if isinstance(outputs, Tensor):
        yield outputs
        return
    for leaf in pytree.tree_leaves(outputs):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            for field in fields(leaf):
                yield from _tensors(getattr(leaf, field.name))
