"""What an all-reduce in overlapping segments takes, from measured links, codecs and the cost of handling a segment."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from gradwire.comm.algorithms import HalvingDoubling, Ring, TwoShot
from gradwire.comm.choices import Way
from gradwire.comm.codecs.codec import Codec
from gradwire.comm.layout import Range, segments
from gradwire.comm.links import CodecSpeed, Link
from gradwire.comm.pricing import PhasePrice, price
from gradwire.comm.program import Codecs, granule, taking_part
from gradwire.comm.rounds import Algorithm
from gradwire.comm.topology import Topology

ALGORITHMS: Mapping[str, Algorithm] = {
    "ring": Ring(),
    "bidirectional_ring": Ring(bidirectional=True),
    "two_shot": TwoShot(),
    "halving_doubling": HalvingDoubling(),
}
_SEGMENTS = (4.0, 8.0, 16.0, 1.0)  # MiB
_MOST_MESSAGES = 64  # two shots to more peers than that are not considered


@dataclass(frozen=True)
class Costs:
    """The constants of the prediction.

    Args:
        links: By axis; each rank's share.
        codecs: How fast the codec of an axis works, by axis.
        handling: Seconds of the processor for each segment in each stage, beside everything else.
    """

    links: Mapping[str, Link]
    codecs: Mapping[str, CodecSpeed]
    handling: float = 0.0


def predict(topology: Topology, codecs: Codecs, way: Way, nbytes: int, costs: Costs) -> float:
    """Seconds that a staged way takes: the first segment goes through all stages, the others follow at the pace of what
    is busiest, be it the link of an axis or the rank's processor.

    Args:
        topology: The axes.
        codecs: By axis; used if the way is coded.
        way: Any but the backend's own all-reduce, which cannot be looked into.
        nbytes: Of the tensor, float32.
        costs: What was measured.
    """
    sizes = [stop - start for start, stop in _segments(topology, codecs, way, nbytes)]
    first, largest = (_segment(topology, codecs, way, size, costs) for size in (sizes[0], max(sizes)))
    growth = (largest.pace - first.pace) / max(1, max(sizes) - sizes[0])
    return first.alone + sum(first.pace + growth * (size - sizes[0]) for size in sizes[1:])


@dataclass(frozen=True)
class _Seconds:
    """Of a segment: through all stages, and of what is busiest."""

    alone: float
    pace: float


def _segment(topology: Topology, codecs: Codecs, way: Way, elements: int, costs: Costs) -> _Seconds:
    """With turned orders the mean over them, as segments take them in turn."""
    turns = _turns(topology, way)
    algorithm = ALGORITHMS.get(way.algorithm, ALGORITHMS["ring"])
    used = codecs if way.coded else {}
    nbytes = 4 * elements * turns
    priced = price(topology, costs.links, nbytes, algorithm, used, costs.codecs, rotate=way.rotate)
    busy: dict[str, float] = defaultdict(float)
    for phase in (phase for part in priced.parts for phase in part):
        busy[f"link {phase.axis}"] += phase.wire / turns
        busy["processor"] += _work(phase, costs) / turns
    alone = max(sum(phase.wire + _work(phase, costs) for phase in part) for part in priced.parts)
    return _Seconds(alone, max(busy.values(), default=0.0))


def _work(phase: PhasePrice, costs: Costs) -> float:
    return phase.encode + phase.decode + costs.handling


def _turns(topology: Topology, way: Way) -> int:
    return max(1, len(taking_part(topology))) if way.rotate else 1


def _segments(topology: Topology, codecs: Codecs, way: Way, nbytes: int) -> list[Range]:
    unit = granule(codecs if way.coded else {})
    most = max(int(way.segment_mb * (1 << 20)) // 4, unit)
    return segments(max(1, math.ceil(nbytes / 4)), most, unit, least=_turns(topology, way))


def ways(topology: Topology, codecs: Mapping[str, Codec], nbytes: int, device: torch.device) -> Iterator[Way]:
    """The staged ways worth considering for a tensor, no two of which do the same."""
    turning = (False, True) if len(taking_part(topology)) > 1 else (False,)
    seen: set[tuple[object, ...]] = set()
    for coded in (True, False) if codecs else (False,):
        plain = [size for axis, size in topology.axes.items() if size > 1 and not (coded and axis in codecs)]
        choices = itertools.product(_algorithms(plain, coded, device), _SEGMENTS, turning)
        for way in (Way(algorithm, segment_mb, rotate, coded) for algorithm, segment_mb, rotate in choices):
            key = (way.algorithm, coded, way.rotate, *_segments(topology, codecs, way, nbytes))
            if key not in seen:
                seen.add(key)
                yield way


def _algorithms(plain: list[int], coded: bool, device: torch.device) -> Iterator[str]:
    """For axes without codec of these sizes: over two ranks all algorithms are one exchange."""
    if coded and device.type == "cuda":
        yield "native"  # NCCL's own along these axes
    longest = max(plain, default=1)
    if longest <= _MOST_MESSAGES:
        yield "two_shot"
    if longest > 2:
        yield from ("ring", "bidirectional_ring", "halving_doubling")
