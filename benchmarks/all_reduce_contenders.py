"""What the all-reduce benchmark compares, by name.

`gloo` is the backend's all_reduce; `p2p` a bare exchange between neighboring hosts of the bytes that an all-reduce must
send, `p2p/CODEC` of a codec's bytes. Everything else is ours: `ALGORITHM[/CODEC][@SEGMENT_MB][+rotate]`, such as
`ring`, `ring/int8`, `two_shot/int4@2`; the codec compresses the slowest axis.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm import AllReduce, Topology, codecs

Run = Callable[[Tensor], object]


@dataclass(frozen=True)
class Shape:
    """Hosts and the ranks on each, with the axes that ours gets (fastest first)."""

    hosts: int
    ranks_per_host: int
    axes: tuple[tuple[str, int], ...]

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host

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
    def make(self, shape: Shape, elements: int) -> Run:
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
class Gloo(Contender):
    """The backend's own."""

    def make(self, shape: Shape, elements: int) -> Run:
        def run(tensor: Tensor) -> None:
            dist.all_reduce(tensor)
            tensor.div_(shape.ranks)

        return run


@dataclass(frozen=True)
class PointToPoint(Contender):
    """Every rank sends its share of the bytes to the next host and receives as much from the one before."""

    codec: str | None

    def make(self, shape: Shape, elements: int) -> Run:
        share = max(1, self.payload(shape, elements) // shape.ranks_per_host)
        outgoing, incoming = torch.ones(share, dtype=torch.uint8), torch.empty(share, dtype=torch.uint8)
        rank = dist.get_rank()
        following, before = ((rank + step) % shape.ranks for step in (shape.ranks_per_host, -shape.ranks_per_host))

        def run(tensor: Tensor) -> None:
            # receive first: gloo sends that are posted before the receives take turns, at half the rate
            for work in (dist.irecv(incoming, before), dist.isend(outgoing, following)):
                assert work is not None
                work.wait()

        return run

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

    def make(self, shape: Shape, elements: int) -> Run:
        settings: dict[str, Any] = {"algorithm": self.algorithm}
        if self.codec is not None:
            settings["codecs"] = {shape.axes[-1][0]: self.codec}
        if self.segment_mb is not None:
            settings["segment_mb"] = self.segment_mb
        if self.rotate:
            settings["rotate"] = True
        return AllReduce(Topology(**dict(shape.axes)), **settings)

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
    if name == "gloo":
        return Gloo(name)
    match = re.fullmatch(r"(\w+)(?:/(\w+))?(?:@(\d+(?:\.\d+)?))?(\+rotate)?", name)
    if match is None:
        raise ValueError(f"{name!r} is no contender; expected gloo, p2p[/CODEC] or ALGORITHM[/CODEC][@SEGMENT_MB]")
    algorithm, codec, segment, rotate = match.groups()
    if algorithm == "p2p":
        return PointToPoint(name, codec)
    return Ours(name, algorithm, codec, float(segment) if segment else None, rotate is not None)
