"""What the all-reduce benchmark compares, by name.

`gloo` or `nccl` is the backend's all_reduce; `p2p` a bare exchange between neighboring hosts of the bytes that an
all-reduce must send, `p2p/CODEC` of a codec's bytes. Everything else is ours:
`ALGORITHM[/CODEC][@SEGMENT_MB][+rotate]`, such as `ring`, `two_shot/int4@2`; the codec compresses the slowest axis.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm import codecs
from gradwire.comm.all_reduce import AllReduce
from gradwire.comm.telemetry import Traffic
from gradwire.comm.topology import Topology

BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True)
class Run:
    """A contender at work on this rank.

    Attributes:
        reduce: Reduces a tensor in place.
        traffic: What that cost since it was asked last, by axis, where it is known.
    """

    reduce: Callable[[Tensor], object]
    traffic: Callable[[], Mapping[str, Traffic]] | None = None


@dataclass(frozen=True)
class Shape:
    """Hosts and the ranks on each, with the axes that ours gets (fastest first)."""

    hosts: int
    ranks_per_host: int
    axes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, topology: Topology) -> "Shape":
        """Along the last axis that has several ranks go the slow links; those who share its position are a host."""
        hosts = ([size for size in topology.axes.values() if size > 1] or [1])[-1]
        return cls(hosts, topology.size // hosts, tuple(topology.axes.items()))

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host

    @property
    def slow_axis(self) -> str:
        """The axis of the slow links."""
        return next((axis for axis, size in reversed(self.axes) if size > 1), self.axes[-1][0])

    def payload(self, elements: int, codec: str | None) -> int:
        """Bytes that each host must send for the mean of `elements` float32 numbers of every rank."""
        if codec is None:
            return 2 * (self.hosts - 1) * 4 * elements // self.hosts
        part = math.ceil(elements / self.ranks)
        return 2 * (self.hosts - 1) * self.ranks_per_host * codecs.named(codec).nbytes(part)


@dataclass(frozen=True)
class Contender(ABC):
    """A way to reduce a float32 tensor to its mean over ranks, in place."""

    name: str

    @abstractmethod
    def make(self, shape: Shape) -> Run:
        """Ready to run on this rank; a collective. Raises CommError where there is no such thing."""

    def payload(self, shape: Shape, elements: int) -> int:
        """Bytes that each host must send."""
        return shape.payload(elements, None)

    @property
    def exchange(self) -> str:
        """The name of the bare exchange of the same bytes."""
        return "p2p"

    @property
    def reduces(self) -> bool:
        """Whether the tensor holds the mean afterwards."""
        return True


@dataclass(frozen=True)
class Backend(Contender):
    """The backend's own."""

    def make(self, shape: Shape) -> Run:
        def reduce(tensor: Tensor) -> None:
            dist.all_reduce(tensor)
            tensor.div_(shape.ranks)

        return Run(reduce)


@dataclass(frozen=True)
class PointToPoint(Contender):
    """Every rank sends its share of the bytes to the next host and receives as much from the one before."""

    codec: str | None

    def make(self, shape: Shape) -> Run:
        rank = dist.get_rank()
        following, before = ((rank + step) % shape.ranks for step in (shape.ranks_per_host, -shape.ranks_per_host))
        buffers: dict[int, tuple[Tensor, Tensor]] = {}

        def exchange(tensor: Tensor) -> None:
            share = max(1, self.payload(shape, tensor.numel()) // shape.ranks_per_host)
            if share not in buffers:
                buffers.clear()
                made = tensor.new_ones(share, dtype=torch.uint8)
                buffers[share] = made, torch.empty_like(made)
            outgoing, incoming = buffers[share]
            # receive first: gloo sends that are posted before the receives take turns, at half the rate
            operations = [dist.P2POp(dist.irecv, incoming, before), dist.P2POp(dist.isend, outgoing, following)]
            for work in dist.batch_isend_irecv(operations):
                work.wait()

        return Run(exchange)

    def payload(self, shape: Shape, elements: int) -> int:
        return shape.payload(elements, self.codec)

    @property
    def exchange(self) -> str:
        return self.name

    @property
    def reduces(self) -> bool:
        return False


@dataclass(frozen=True)
class Ours(Contender):
    """gradwire's AllReduce."""

    algorithm: str
    codec: str | None
    segment_mb: float | None
    rotate: bool

    def make(self, shape: Shape) -> Run:
        settings: dict[str, Any] = {"algorithm": self.algorithm}
        if self.codec is not None:
            settings["codecs"] = {shape.slow_axis: self.codec}
        if self.segment_mb is not None:
            settings["segment_mb"] = self.segment_mb
        if self.rotate:
            settings["rotate"] = True
        all_reduce = AllReduce(Topology(**dict(shape.axes)), **settings)
        return Run(all_reduce, None if all_reduce.is_native else all_reduce.take_traffic)

    def payload(self, shape: Shape, elements: int) -> int:
        return shape.payload(elements, self.codec)

    @property
    def exchange(self) -> str:
        return f"p2p/{self.codec}" if self.codec else "p2p"


def contender(name: str) -> Contender:
    """What a name stands for, see above.

    Raises:
        ValueError: It stands for nothing.
    """
    if name in BACKENDS:
        return Backend(name)
    match = re.fullmatch(r"(\w+)(?:/(\w+))?(?:@(\d+(?:\.\d+)?))?(\+rotate)?", name)
    if match is None:
        raise ValueError(f"{name!r} is no contender; expected gloo, p2p[/CODEC] or ALGORITHM[/CODEC][@SEGMENT_MB]")
    algorithm, codec, segment, rotate = match.groups()
    if algorithm == "p2p":
        return PointToPoint(name, codec)
    return Ours(name, algorithm, codec, float(segment) if segment else None, rotate is not None)
