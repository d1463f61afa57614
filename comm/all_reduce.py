"""The all-reduce: one object that knows who takes part and how, called on tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.errors import CommError
from gradwire.comm.group import initialized, named, own_group, size_of
from gradwire.comm.topology import Topology

Op = Literal["mean", "sum"]


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Return when the tensor holds the result (on CUDA: when the current stream is made to wait for it).

        Raises:
            CollectiveError: A peer died or did not answer in time.
        """
        ...


class AllReduce:
    """Combines a tensor over ranks so that every rank holds the same bits.

    Args:
        topology: Axes of links, fastest first; must multiply to the number of ranks. One ring where None.
        algorithm: How; "native" is the backend's own all-reduce.
        group: Ranks that take part; all where None. Without a process group this process is alone and nothing is sent.

    Raises:
        TopologyError: The topology is of another size.
        CommError: Unknown algorithm.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        algorithm: Literal["native"] = "native",
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if algorithm != "native":
            raise CommError(f"algorithm is {algorithm!r}; expected 'native'")
        self.group = group
        self.algorithm = algorithm
        self.size = size_of(group)
        self.topology = topology or Topology(ring=self.size)
        self.topology.check(self.size)

    def __call__(self, tensor: Tensor, op: Op = "mean", async_op: bool = False) -> Work | None:
        """Reduce `tensor` (dense, any shape, the same on every rank) in place.

        Ranks make these calls in the same order. "mean" is the sum divided by the number of ranks, rounded once.

        Returns:
            None; with `async_op` the work to wait for, before which the tensor must not be touched.

        Raises:
            CommError: Unknown op, or the mean of integers.
            CollectiveError: A peer died or did not answer in time.
        """
        check_op(op, tensor)
        if not initialized() or self.size == 1:
            return _Done() if async_op else None
        work = self._start(tensor, op)
        if async_op:
            return work
        work.wait()
        return None

    def private(self, device: torch.device) -> "AllReduce":
        """The same over a group of its own, whose calls need no order with anybody else's. A collective."""
        group = own_group(self.group, device) if initialized() and self.size > 1 else self.group
        return AllReduce(self.topology, self.algorithm, group)

    def _start(self, tensor: Tensor, op: Op) -> "_Native":
        flat = tensor.detach()
        flat = flat if flat.is_contiguous() else flat.contiguous()

        def complete() -> None:
            with torch.no_grad():
                if op == "mean":
                    flat.div_(self.size)
                if flat.data_ptr() != tensor.data_ptr():
                    tensor.copy_(flat)

        with named("an all-reduce", self.group):
            work = dist.all_reduce(flat, group=self.group, async_op=True)
        assert work is not None
        return _Native(work, self.group, complete)


def check_op(op: str, tensor: Tensor) -> None:
    """Raise unless `op` is one of ours and defined for the tensor.

    Raises:
        CommError: It is not.
    """
    if op not in ("mean", "sum"):
        raise CommError(f"op is {op!r}; expected 'mean' or 'sum'")
    if op == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise CommError(f"the mean of {tensor.dtype} is no {tensor.dtype}; use op='sum' or convert the tensor first")


@dataclass(frozen=True)
class _Native:
    work: dist.Work
    group: dist.ProcessGroup | None
    complete: Callable[[], None]

    def wait(self) -> None:
        with named("an all-reduce", self.group):
            self.work.wait()
        self.complete()


@dataclass(frozen=True)
class _Done:
    def wait(self) -> None:
        """Nothing was sent."""
