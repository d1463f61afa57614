"""The all-reduce for those who keep torch's DistributedDataParallel: a communication hook."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from gradwire.comm.all_reduce import AllReduce
from gradwire.comm.errors import CollectiveError, CommError
from gradwire.comm.group import own_group, size_of
from gradwire.comm.hook_residuals import HookResiduals
from gradwire.comm.sparse import SparseParameter, reduce_sparse
from gradwire.comm.works import Op


def ddp_hook(all_reduce: AllReduce | Callable[[], AllReduce], op: Op = "mean") -> "DdpHook":
    """A hook for `DistributedDataParallel.register_comm_hook(state, hook)` that reduces gradients by `all_reduce`.

    Buckets travel over a process group of the hook's own while backward runs on. Unused parameters, sparse gradients
    and `no_sync` work as ever. When a reduction fails, `backward` raises its error; DDP is of no use afterwards.

    Where `attach` can do more: DDP lays its buckets out anew after the first update, which changes the order of
    summation. With three or more ranks a run that resumes from a snapshot therefore does not end in the same bits as
    one that was never interrupted. What codecs with error feedback and PowerSGD carry over follows the parameters to
    the new buckets, but is no part of a snapshot. It counts once the reduced gradients are finite, unless `settle` says
    otherwise; a gradient scaler's new scale over its old goes to `rescale`.

    Args:
        all_reduce: Over the ranks that DDP was given. Or what makes it, such as `AllReduce` itself, called at the first
            backward: for those who have to name the hook before the process group exists.
        op: "mean" is DDP's own; "sum" for a loss already divided by the global batch.

    Returns:
        The hook, for one DDP. Register it with the module as `state`: errors then name parameters.

    Raises:
        CommError: At the first backward: `all_reduce` was made before the process group.
    """
    return DdpHook(all_reduce, op)


class DdpHook:
    """What `ddp_hook` makes."""

    def __init__(self, all_reduce: AllReduce | Callable[[], AllReduce], op: Op) -> None:
        self._given = all_reduce
        self._op = op
        self._lane: AllReduce | None = None
        self._sparse_group: dist.ProcessGroup | None = None
        self._stream: torch.cuda.Stream | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="gradwire ddp hook")
        self._names: dict[int, str] | None = None
        self._carried: HookResiduals | None = None
        self.__name__ = self.__qualname__ = "ddp_hook"  # DDP asks for them

    def settle(self, kept: bool) -> None:
        """Say whether the last update was applied, where that is not just a matter of finite gradients."""
        if self._carried is not None:
            self._carried.settle(kept)

    def rescale(self, factor: float) -> None:
        """The loss will be multiplied with `factor` times what it was."""
        if self._carried is not None:
            self._carried.rescale(factor)

    def __call__(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP calls this when a bucket is full, in the same order on every rank."""
        tensor, parameters = bucket.buffer(), bucket.parameters()
        lane = self._lane or self._open(tensor.device)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        names = self._names_of(state, parameters)
        finish = (
            self._start_sparse(tensor, parameters[0], lane)
            if tensor.is_sparse
            else self._start(tensor, lane)
            if self._carried is None
            else self._start_with_residuals(bucket, names, lane, self._carried)
        )
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else None)
        self._worker.submit(self._complete, finish, _described(names), future)
        _raise_when_backward_ends(future)
        return future

    def _open(self, device: torch.device) -> AllReduce:
        """Create the hook's own group; a collective, and every rank is at its first bucket."""
        given = self._given if isinstance(self._given, AllReduce) else self._given()
        if given.group is None and given.size != size_of(None):
            raise CommError(
                f"this all-reduce was made for {given.size} rank before the process group existed, and there are "
                f"{size_of(None)}: give the hook what makes it, such as ddp_hook(AllReduce)"
            )
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._lane = given.private(device)
        if self._lane.size > 1 and any(codec.feedback for codec in self._lane.codecs.values()):
            self._carried = HookResiduals(self._lane)
        return self._lane

    def _start(self, tensor: Tensor, lane: AllReduce) -> Callable[[], Tensor]:
        """Begin to reduce a dense bucket."""
        work = lane(tensor, self._op, async_op=True)
        assert work is not None

        def finish() -> Tensor:
            work.wait()
            return tensor

        return finish

    def _start_with_residuals(
        self, bucket: GradBucket, names: Sequence[str], lane: AllReduce, carried: HookResiduals
    ) -> Callable[[], Tensor]:
        tensor = bucket.buffer()
        place, residuals = carried.begin(bucket, names)
        if self._op == "mean":
            tensor.div_(lane.size)
        work = lane(
            tensor,
            "sum",
            async_op=True,
            residuals=residuals.of(place),
            update=carried.updates - 1,
            matrices=place.matrices,
        )
        assert work is not None

        def finish() -> Tensor:
            work.wait()
            residuals.reduced()
            return tensor

        return finish

    def _start_sparse(self, tensor: Tensor, parameter: Tensor, lane: AllReduce) -> Callable[[], Tensor]:
        """A sparse gradient, alone in its bucket; on a group of its own, because it blocks while others are sent."""
        if self._sparse_group is None and lane.size > 1:
            self._sparse_group = own_group(lane.group, parameter.device)
        scale = 1.0 / lane.size if self._op == "mean" else 1.0
        holder = nn.Parameter(parameter.detach(), requires_grad=False)  # the gradient of the real one is DDP's
        holder.grad = tensor

        def finish() -> Tensor:
            if lane.size > 1:
                reduce_sparse([SparseParameter("", holder)], scale, self._sparse_group)
            assert holder.grad is not None
            return holder.grad

        return finish

    def _complete(self, finish: Callable[[], Tensor], what: str, future: torch.futures.Future[Tensor]) -> None:
        """On the worker thread: wait for the peers."""
        try:
            with self._beside_backward():
                future.set_result(finish())
        except Exception as error:
            failure = CollectiveError(f"the gradients of {what}: {error}")
            failure.__cause__ = error
            future.set_exception(failure)  # type: ignore[arg-type]

    def _beside_backward(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _names_of(self, state: object, parameters: Sequence[Tensor]) -> list[str]:
        if self._names is None:
            module = state.module if isinstance(state, DistributedDataParallel) else state
            named = module.named_parameters() if isinstance(module, nn.Module) else ()
            self._names = {id(parameter): name for name, parameter in named}
        for each in parameters:
            self._names.setdefault(id(each), f"parameter {len(self._names) + 1} {list(each.shape)}")
        return [self._names[id(each)] for each in parameters]


def _described(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)} parameters)"


def _raise_when_backward_ends(future: torch.futures.Future[Tensor]) -> None:
    """Wait before DDP does: it cannot tell an error from a gradient. `Join` calls the hook outside backward."""

    def wait() -> None:
        future.wait()

    if torch._C._current_graph_task_id() != -1:
        Variable._execution_engine.queue_callback(wait)
