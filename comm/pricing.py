"""What an all-reduce costs: latency, bandwidth and codec work, from the rounds that run."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gradwire.comm.links import FREE, CodecSpeed, Link
from gradwire.comm.pieces import bounds, cut
from gradwire.comm.program import Algorithms, Codecs, Phase, granule, rotations
from gradwire.comm.rounds import Indices
from gradwire.comm.topology import Topology


@dataclass(frozen=True)
class PhasePrice:
    """What one phase costs the rank that has most to do.

    Attributes:
        axis: The axis that it goes along.
        kind: "reduce_scatter" or "all_gather".
        rounds: One after the other.
        bytes: Sent by the rank.
        wire: Seconds on the link.
        encode: Seconds before it.
        decode: Seconds after it.
    """

    axis: str
    kind: str
    rounds: int
    bytes: int
    wire: float
    encode: float
    decode: float


@dataclass(frozen=True)
class Price:
    """What an all-reduce costs.

    Attributes:
        seconds: From beginning to end, without overlap of segments.
        rounds: One after the other.
        bytes: Sent by a rank, by axis (by the one that sends most).
        parts: The phases of each part: one part, or one for every axis where rotated.
    """

    seconds: float
    rounds: int
    bytes: Mapping[str, int]
    parts: tuple[tuple[PhasePrice, ...], ...]


def price(
    topology: Topology,
    links: Mapping[str, Link],
    nbytes: int,
    algorithm: Algorithms,
    codecs: Codecs | None = None,
    codec_speed: Mapping[str, CodecSpeed] | None = None,
    *,
    rotate: bool = False,
    itemsize: int = 4,
) -> Price:
    """The α-β-γ cost of an all-reduce of `nbytes` over equal ranks.

    Every round costs what it costs the rank with the largest chunks (the first); the simulated time is the same where
    all chunks are equal, and never more. With rotated axes a link serves one part after the other.

    Args:
        topology: The axes.
        links: By axis; `Link.shared` where ranks share one.
        nbytes: Of the tensor.
        algorithm: For all axes, or by axis.
        codecs: By axis.
        codec_speed: By axis; free where not given.
        rotate: Parts take the axes in rotated order, all at once.
        itemsize: Bytes of an element.

    Raises:
        TopologyError: Codecs or algorithms for an axis that does not exist.
    """
    programs = rotations(topology, algorithm, codecs, rotate=rotate)
    unit = granule(codecs)
    sizes = [stop - start for start, stop in cut(0, nbytes // itemsize, len(programs), unit)]
    speeds = codec_speed or {}
    parts = tuple(
        _price_part(program, topology, links, size, unit, speeds, itemsize)
        for program, size in zip(programs, sizes, strict=True)
    )
    sent: Counter[str] = Counter()
    for phase in (phase for part in parts for phase in part):
        sent[phase.axis] += phase.bytes
    return Price(_seconds(parts), max(sum(phase.rounds for phase in part) for part in parts), dict(sent), parts)


def _price_part(
    program: tuple[Phase, ...],
    topology: Topology,
    links: Mapping[str, Link],
    size: int,
    unit: int,
    speeds: Mapping[str, CodecSpeed],
    itemsize: int,
) -> tuple[PhasePrice, ...]:
    found: list[PhasePrice] = []
    cuts: list[Indices] = []
    for phase in program:
        ranks = topology.axes[phase.axis]
        if phase.adds:
            cuts.append(bounds(np.array([size]), ranks * phase.algorithm.pieces, unit)[0])
            size = int(cuts[-1][phase.algorithm.pieces])
        ends = cuts[-1] if phase.adds else cuts.pop()
        if ends[-1]:
            found.append(_price_phase(phase, ranks, links[phase.axis], ends, speeds.get(phase.axis, FREE), itemsize))
    return tuple(found)


def _price_phase(phase: Phase, ranks: int, link: Link, ends: Indices, speed: CodecSpeed, itemsize: int) -> PhasePrice:
    """The first chunks are the largest, so `ends[count]` elements are the most that `count` chunks hold."""
    rounds, sent, wire = phase.algorithm.rounds(ranks), 0, 0.0
    patterns = Counter(phase.algorithm.pattern(ranks, index) for index in range(rounds))
    for pattern, times in patterns.items():
        queues = [0.0, 0.0]
        for distance, count in pattern:
            elements = int(ends[count])
            nbytes = elements * itemsize if phase.codec is None else phase.codec.nbytes(elements)
            sent += times * nbytes
            queues[link.directions == 2 and distance > ranks // 2] += link.seconds(nbytes)
        wire += times * max(queues)
    encode, decode = (0.0, 0.0) if phase.codec is None else _codec_seconds(phase, ranks, 4 * int(ends[1]), speed)
    return PhasePrice(phase.axis, phase.kind, rounds, sent, wire, encode, decode)


def _codec_seconds(phase: Phase, ranks: int, chunk: int, speed: CodecSpeed) -> tuple[float, float]:
    """To encode and to decode, for chunks of so many bytes of float32."""
    encoded, decoded = (ranks - 1, ranks - 1) if phase.adds else (1, ranks)
    return encoded * chunk / speed.encode, decoded * chunk / speed.decode


def _seconds(parts: tuple[tuple[PhasePrice, ...], ...]) -> float:
    """Parts go on side by side; a link serves the part that comes first, phase by phase."""
    ready = [0.0] * len(parts)
    free: dict[str, float] = {}
    for number in range(max(map(len, parts))):
        for place, part in enumerate(parts):
            if number < len(part):
                phase = part[number]
                free[phase.axis] = max(ready[place] + phase.encode, free.get(phase.axis, 0.0)) + phase.wire
                ready[place] = free[phase.axis] + phase.decode
    return max(ready)
