"""The all-reduce: one object that knows who takes part and how, called on tensors."""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm import codecs as _codecs
from gradwire.comm.algorithms import HalvingDoubling, Ring, TwoShot
from gradwire.comm.codecs import Codec
from gradwire.comm.errors import CodecError, CommError, TopologyError
from gradwire.comm.group import initialized, named, own_group, size_of, timeout_of
from gradwire.comm.rounds import Algorithm
from gradwire.comm.segment import Residual
from gradwire.comm.staged import Staged
from gradwire.comm.telemetry import Traffic, traffic
from gradwire.comm.topology import Topology

Op = Literal["mean", "sum"]
AlgorithmName = Literal["native", "ring", "bidirectional_ring", "two_shot", "halving_doubling"]


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

    With "native" and no codec this is the backend's own all-reduce. Otherwise a tensor is cut into segments that flow
    through a reduce-scatter along every axis and an all-gather back, several at a time. On an axis with a codec two
    shots carry encoded values: everyone sends each owner its part, the owner sends what it added up to everyone.

    Args:
        topology: Axes of links, fastest first; must multiply to the number of ranks. One ring where None.
        algorithm: How the axes without codec are reduced; "native" leaves these to the backend where it does that well
            (NCCL) and takes two shots where it does not (gloo).
        codecs: What compresses an axis, by the axis's name: a codec or its name.
        group: Ranks that take part; all where None. Without a process group this process is alone and nothing is sent.
        segment_mb: Size of the segments, MiB; smaller ones overlap better and cost more processor time.
        rotate: Whether segments take the axes in turned orders, so that the links of all axes of a torus work at once.
        timeout: Seconds that a peer may keep this rank waiting; the group's time-out where None.

    Raises:
        TopologyError: The topology is of another size, or has no axis that `codecs` names.
        CommError: Unknown algorithm or codec, or a size or time that is not above 0.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        algorithm: AlgorithmName = "native",
        codecs: Mapping[str, Codec | str] | None = None,
        group: dist.ProcessGroup | None = None,
        segment_mb: float = 4.0,
        rotate: bool = False,
        timeout: float | None = None,
    ) -> None:
        if algorithm not in get_args(AlgorithmName):
            raise CommError(f"algorithm is {algorithm!r}; expected one of {', '.join(get_args(AlgorithmName))}")
        for name, value in (("segment_mb", segment_mb), ("timeout", timeout)):
            if value is not None and not 0 < value < float("inf"):
                raise CommError(f"{name} is {value}; expected a number above 0")
        self.group = group
        self.algorithm: AlgorithmName = algorithm
        self.size = size_of(group)
        self.topology = topology or Topology(ring=self.size)
        self.topology.check(self.size)
        self.codecs = _by_axis(self.topology, codecs or {})
        self.segment_mb = segment_mb
        self.rotate = rotate
        self.timeout = timeout
        self._calls = 0
        self._engines: dict[torch.device, Staged] = {}

    def __call__(
        self,
        tensor: Tensor,
        op: Op = "mean",
        async_op: bool = False,
        *,
        seed: int | None = None,
        residuals: Mapping[str, Residual] | None = None,
    ) -> Work | None:
        """Reduce `tensor` (dense, any shape, the same on every rank) in place.

        Ranks make these calls in the same order. "mean" is the sum divided by the number of ranks, rounded once.

        Args:
            tensor: What to reduce.
            op: How.
            async_op: Whether to return before it is done.
            seed: For codecs with random choices, the same on every rank; the number of calls so far where None.
            residuals: Error feedback by axis, each of as many elements as `residual_ranges` covers; with "sum" only.

        Returns:
            None; with `async_op` the work to wait for, before which the tensor must not be touched.

        Raises:
            CommError: Unknown op, the mean of integers, or residuals with "mean".
            CodecError: An axis has a codec, and the tensor no floating-point numbers.
            CollectiveError: A peer died or did not answer in time.
        """
        check_op(op, tensor)
        if residuals and op == "mean":
            raise CommError("residuals are in units of the reduced tensor: divide by the ranks first and use op='sum'")
        if not initialized() or self.size == 1:
            return _Done() if async_op else None
        work = self._start(tensor, op, seed, residuals or {})
        if async_op:
            return work
        work.wait()
        return None

    def take_traffic(self) -> dict[str, Traffic]:
        """By axis, what the reductions since the last call cost this rank; empty for the backend's own all-reduce.

        No reduction may be under way.
        """
        return traffic(meter for engine in self._engines.values() for meter in engine.meters)

    @property
    def is_native(self) -> bool:
        """Whether the backend's own all-reduce does it all."""
        return self.algorithm == "native" and not self.codecs

    def private(self, device: torch.device) -> "AllReduce":
        """The same over a group of its own, whose calls need no order with anybody else's. A collective."""
        group = own_group(self.group, device) if initialized() and self.size > 1 else self.group
        own = AllReduce(self.topology, self.algorithm, self.codecs, group, self.segment_mb, self.rotate, self.timeout)
        if self.size > 1 and not self.is_native:
            own._engine(device)
        return own

    def residual_ranges(self, axis: str, tensor: Tensor) -> list[tuple[int, int]]:
        """The elements of `tensor` that this rank encodes along `axis`, in the order in which a residual holds them."""
        if self.is_native or self.size == 1:
            return []
        return self._engine(tensor.device).residual_ranges(axis, tensor.numel(), tensor.itemsize)

    def owned_ranges(self, axis: str, tensor: Tensor) -> list[tuple[int, int]]:
        """Those among them that belong to this rank: over the ranks they make up the tensor."""
        if self.is_native or self.size == 1:
            return []
        return self._engine(tensor.device).owned_ranges(axis, tensor.numel(), tensor.itemsize)

    def _start(self, tensor: Tensor, op: Op, seed: int | None, residuals: Mapping[str, Residual]) -> Work:
        self._calls += 1
        flat = tensor.detach()
        flat = flat if flat.is_contiguous() else flat.contiguous()

        def complete() -> None:
            if flat.data_ptr() != tensor.data_ptr():
                with torch.no_grad():
                    tensor.copy_(flat)

        if self.is_native:
            return self._start_native(flat, op, complete)
        elements = flat.view(-1)
        if self.codecs and not (elements.is_floating_point() or elements.is_complex()):
            raise CodecError(f"codecs compress floating-point numbers; found {tensor.dtype}. Use an AllReduce without")
        elements = torch.view_as_real(elements).view(-1) if elements.is_complex() else elements
        seed = self._calls if seed is None else seed
        divisor = self.size if op == "mean" else 1
        job = self._engine(tensor.device)(elements, divisor, seed, residuals)
        return _Staged(job.wait, complete)

    def _start_native(self, flat: Tensor, op: Op, complete: Callable[[], None]) -> Work:
        def finish() -> None:
            if op == "mean":
                with torch.no_grad():
                    flat.div_(self.size)
            complete()

        with named("an all-reduce", self.group):
            work = dist.all_reduce(flat, group=self.group, async_op=True)
        assert work is not None
        return _Native(work, self.group, finish)

    def _engine(self, device: torch.device) -> Staged:
        if device not in self._engines:
            parent = self.group or dist.group.WORLD
            assert parent is not None
            seconds = timedelta(seconds=self.timeout) if self.timeout else timeout_of(parent, device)
            engine = Staged(
                self.topology,
                _rounds(self.algorithm, device),
                self.codecs,
                self.group,
                device,
                int(self.segment_mb * (1 << 20)),
                self.rotate,
                seconds or _PATIENCE,
            )
            weakref.finalize(self, engine.close)
            self._engines[device] = engine
        return self._engines[device]


_PATIENCE = timedelta(minutes=30)


def _by_axis(topology: Topology, codecs: Mapping[str, Codec | str]) -> dict[str, Codec]:
    for axis in codecs:
        if axis not in topology.axes:
            raise TopologyError(f"there is a codec for the axis {axis!r}, and the topology is {topology}")
    made = {axis: _codecs.named(codec) if isinstance(codec, str) else codec for axis, codec in codecs.items()}
    return {axis: codec for axis, codec in made.items() if codec.name != "none" and topology.axes[axis] > 1}


def _rounds(name: AlgorithmName, device: torch.device) -> Algorithm | None:
    """The rounds of axes without codec; None for the backend's own."""
    if name == "native":
        return None if device.type == "cuda" else TwoShot()
    made: dict[str, Algorithm] = {
        "ring": Ring(),
        "bidirectional_ring": Ring(bidirectional=True),
        "two_shot": TwoShot(),
        "halving_doubling": HalvingDoubling(),
    }
    return made[name]


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
class _Staged:
    wait_for_job: Callable[[], None]
    complete: Callable[[], None]

    def wait(self) -> None:
        self.wait_for_job()
        self.complete()


@dataclass(frozen=True)
class _Done:
    def wait(self) -> None:
        """Nothing was sent."""
