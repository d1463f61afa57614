"""How ranks are arranged: named axes of links, innermost (fastest) first."""

import hashlib
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gradwire.comm.errors import TopologyError
from gradwire.comm.group import gather_rows, initialized, size_of


@dataclass(frozen=True, init=False)
class Topology:
    """Ranks as points of a grid: `Topology(local=8, node=4)` is four hosts of eight, `Topology(ring=16)` one ring.

    Consecutive ranks differ along the first axis. Axes are compared, hashed and printed in their order.

    Args:
        **axes: Ranks along each axis, the one with the fastest links first.

    Raises:
        TopologyError: No axis at all, or an axis that is no whole number of at least 1.
    """

    _axes: tuple[tuple[str, int], ...]

    def __init__(self, **axes: int) -> None:
        if not axes:
            raise TopologyError(
                "a topology needs at least one axis, such as Topology(ring=4) or Topology(local=8, node=2)"
            )
        for name, size in axes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise TopologyError(f"axis {name} has {size!r} ranks; expected a whole number of at least 1")
        object.__setattr__(self, "_axes", tuple(axes.items()))

    @property
    def axes(self) -> dict[str, int]:
        """Ranks along each axis, innermost first."""
        return dict(self._axes)

    @property
    def size(self) -> int:
        """Ranks in all."""
        return math.prod(size for _, size in self._axes)

    def stride(self, axis: str) -> int:
        """How far apart in rank neighbors along `axis` are.

        Raises:
            TopologyError: No such axis.
        """
        stride = 1
        for name, size in self._axes:
            if name == axis:
                return stride
            stride *= size
        raise TopologyError(f"there is no axis {axis!r} in {self}; expected one of {', '.join(self.axes)}")

    def coordinates(self, rank: int) -> dict[str, int]:
        """The position of `rank` along each axis, innermost first.

        Raises:
            TopologyError: No such rank.
        """
        if not 0 <= rank < self.size:
            raise TopologyError(f"there is no rank {rank} in {self}; expected 0 to {self.size - 1}")
        return {axis: rank // self.stride(axis) % size for axis, size in self._axes}

    def line(self, rank: int, axis: str) -> tuple[int, ...]:
        """The ranks that differ from `rank` along `axis` only, `rank` among them, in order of their position.

        Raises:
            TopologyError: No such rank or axis.
        """
        stride = self.stride(axis)
        first = rank - self.coordinates(rank)[axis] * stride
        return tuple(first + position * stride for position in range(self.axes[axis]))

    def lines(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """All lines along `axis`, in order of their first ranks.

        Raises:
            TopologyError: No such axis.
        """
        stride, size = self.stride(axis), self.axes[axis]
        firsts = (outer + inner for outer in range(0, self.size, stride * size) for inner in range(stride))
        return tuple(tuple(range(first, first + stride * size, stride)) for first in firsts)

    def __str__(self) -> str:
        return " × ".join(f"{name}={size}" for name, size in self._axes)

    def __repr__(self) -> str:
        return f"Topology({', '.join(f'{name}={size}' for name, size in self._axes)})"

    def check(self, world_size: int) -> None:
        """Raise unless the axes multiply to `world_size`.

        Raises:
            TopologyError: They do not.
        """
        if self.size != world_size:
            raise TopologyError(
                f"{self} makes {self.size} ranks and there are {world_size}: "
                f"change an axis, or start {self.size} processes"
            )

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """From text such as "local=8,node=4", innermost axis first.

        Raises:
            TopologyError: No such list, or an axis named twice.
        """
        axes: dict[str, int] = {}
        for entry in text.split(","):
            name, sign, size = (part.strip() for part in entry.partition("="))
            if not (sign and name.isidentifier() and size.isascii() and size.isdigit()):
                raise TopologyError(f"{entry.strip()!r} in {text!r} is no axis; expected a list like local=8,node=4")
            if name in axes:
                raise TopologyError(f"axis {name} stands twice in {text!r}; give every axis a name of its own")
            axes[name] = int(size)
        return cls(**axes)

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh) -> "Topology":
        """The axes of a DeviceMesh, whose last dimension is the innermost; dimensions without a name are dim0, dim1, …

        Raises:
            TopologyError: The mesh orders its ranks otherwise than by rank.
        """
        ranks = mesh.mesh.flatten().tolist()
        if ranks != sorted(ranks):
            raise TopologyError(
                f"the mesh holds its ranks in the order {ranks}; expected them ascending, the last dimension running "
                "fastest: build it as init_device_mesh does"
            )
        names = mesh.mesh_dim_names or tuple(f"dim{number}" for number in range(mesh.ndim))
        return cls(**dict(reversed(list(zip(names, mesh.mesh.shape, strict=True)))))

    @classmethod
    def detect(cls, group: dist.ProcessGroup | None = None) -> "Topology":
        """`Topology(local=ranks on a host, node=hosts)` as found; a collective over `group` where one exists.

        The launcher's LOCAL_WORLD_SIZE is believed; without it, ranks with the same host name share a host. Before the
        process group exists, WORLD_SIZE and LOCAL_WORLD_SIZE decide, and one process is alone.

        Raises:
            TopologyError: Hosts with unequal numbers of ranks, or whose ranks are not consecutive.
        """
        if not initialized():
            return cls._from_environment()
        local, host = int(os.environ.get("LOCAL_WORLD_SIZE", "0")), _host_hash()
        rows = gather_rows(torch.tensor([local, host], dtype=torch.int64), group).tolist()
        if all(local for local, _ in rows) and len(rows) == size_of(None):
            return cls._from_counts([count for count, _ in rows])
        return cls._from_hosts([host for _, host in rows])

    @classmethod
    def _from_environment(cls) -> "Topology":
        world = int(os.environ.get("WORLD_SIZE", "1"))
        return cls._from_counts([int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))] * world)

    @classmethod
    def _from_counts(cls, counts: Sequence[int]) -> "Topology":
        """From every rank's number of ranks on its own host."""
        local, world = counts[0], len(counts)
        if any(count != local for count in counts) or world % local:
            found = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts))
            raise TopologyError(
                f"hosts hold unequal numbers of ranks (ranks on the same host, by rank: {found}). Start equally many "
                f"on every host, or give the axes yourself: Topology(ring={world})"
            )
        return cls(local=local, node=world // local)

    @classmethod
    def _from_hosts(cls, hosts: Sequence[int]) -> "Topology":
        """From every rank's host."""
        topology = cls._from_counts([hosts.count(host) for host in hosts])
        local = topology.axes["local"]
        if any(len(set(hosts[start : start + local])) > 1 for start in range(0, len(hosts), local)):
            raise TopologyError(
                f"ranks of one host are not consecutive (hosts by rank: {_numbered(hosts)}). Number the ranks host by "
                f"host, or give the axes yourself: Topology(ring={len(hosts)})"
            )
        return topology


def _host_hash() -> int:
    return int.from_bytes(hashlib.blake2b(platform.node().encode(), digest_size=7).digest())


def _numbered(hosts: Sequence[int]) -> str:
    order = list(dict.fromkeys(hosts))
    return ", ".join(str(order.index(host)) for host in hosts)
