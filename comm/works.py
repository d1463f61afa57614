"""What a collective does and gives back: its operation, and the work to wait for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.errors import CommError
from gradwire.comm.group import await_release, named

Op = Literal["mean", "sum"]
"""What becomes of the ranks' values."""


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Return when the tensor holds the result (on CUDA: when the current stream is made to wait for it).

        Raises:
            CollectiveError: A peer died or did not answer in time.
        """
        ...


def check_op(op: str, tensor: Tensor) -> None:
    """Raise unless `op` is one of ours and defined for the tensor.

    Raises:
        CommError: It is not.
    """
    if tensor.layout != torch.strided:
        raise CommError(f"the tensor is sparse ({tensor.layout}); expected a dense one: call to_dense() first")
    if op not in ("mean", "sum"):
        raise CommError(f"op is {op!r}; expected 'mean' or 'sum'")
    if op == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise CommError(f"the mean of {tensor.dtype} is no {tensor.dtype}; use op='sum' or convert the tensor first")


def has_fractions(tensor: Tensor) -> bool:
    """Whether its elements are floating-point or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


@dataclass
class NativeWork:
    """The backend's; `made` are tensors that were made for it alone."""

    work: dist.Work | None
    group: dist.ProcessGroup | None
    made: tuple[Tensor, ...]
    complete: Callable[[], None]

    def wait(self) -> None:
        if self.work is None:
            return
        with named("an all-reduce", self.group):
            self.work.wait()
        self.work = None
        await_release(*self.made)
        self.complete()


@dataclass(frozen=True)
class StagedWork:
    wait_for_job: Callable[[], None]
    complete: Callable[[], None]

    def wait(self) -> None:
        self.wait_for_job()
        self.complete()


@dataclass(frozen=True)
class DoneWork:
    def wait(self) -> None:
        """Nothing was sent."""
