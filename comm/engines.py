"""The executors of one all-reduce: one for each device and way, made when it first comes."""

import weakref
from collections.abc import Collection, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from gradwire.comm.choices import Way
from gradwire.comm.codecs import Codec
from gradwire.comm.compression import Compression
from gradwire.comm.group import timeout_of
from gradwire.comm.prediction import ALGORITHMS
from gradwire.comm.rounds import Algorithm
from gradwire.comm.staged import Staged
from gradwire.comm.telemetry import Meter
from gradwire.comm.topology import Topology

_PATIENCE = timedelta(minutes=30)


class Engines:
    """Executors by device and way. Making one and ending one are collectives over the group.

    Args:
        topology: The axes, fastest links first.
        codecs: By axis; used by the ways that are coded, and replaced by `recode`.
        group: The ranks; all where None.
        timeout: Seconds that a peer may keep this rank waiting; the group's time-out where None.
    """

    def __init__(
        self,
        topology: Topology,
        codecs: dict[str, Compression],
        group: dist.ProcessGroup | None,
        timeout: float | None,
    ) -> None:
        self._topology = topology
        self._codecs = codecs
        self._group = group
        self._timeout = timeout
        self._made: dict[tuple[torch.device, Way], Staged] = {}

    def __iter__(self) -> Iterator[Staged]:
        return iter(self._made.values())

    @property
    def meters(self) -> Iterator[Meter]:
        """Those of all stages."""
        return (meter for engine in self for meter in engine.meters)

    def get(self, device: torch.device, way: Way) -> Staged:
        """The executor of a way that is not the backend's own."""
        if (device, way) not in self._made:
            parent = self._group or dist.group.WORLD
            assert parent is not None
            timeout = timeout_of(parent, device) if self._timeout is None else timedelta(seconds=self._timeout)
            engine = Staged(
                self._topology,
                _rounds(way.algorithm, device),
                self._codecs if way.coded else {},
                self._group,
                device,
                int(way.segment_mb * (1 << 20)),
                way.rotate,
                timeout or _PATIENCE,
            )
            weakref.finalize(self, engine.close)
            self._made[device, way] = engine
        return self._made[device, way]

    def recode(self, axis: str, codec: Codec) -> None:
        """Another codec on an axis that has one. No reduction may be under way."""
        self._codecs[axis] = codec
        for engine in self:
            engine.recode(axis, codec)

    def leave(self, but: Collection[Way] = ()) -> None:
        """End all executors but those of some ways. Nothing may be under way."""
        for key in [key for key in self._made if key[1] not in but]:
            self._made.pop(key).leave()


def _rounds(name: str, device: torch.device) -> Algorithm | None:
    """The rounds of axes without codec; None for the backend's own."""
    if name == "native":
        return None if device.type == "cuda" else ALGORITHMS["two_shot"]
    return ALGORITHMS[name]
