"""An all-reduce over several axes as a program: reduce-scatter along each, then all-gather back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gradwire.comm.algorithms.two_shot import TwoShot
from gradwire.comm.codecs.codec import Codec
from gradwire.comm.errors import TopologyError
from gradwire.comm.rounds import Algorithm, Round
from gradwire.comm.topology import Topology

Kind = Literal["reduce_scatter", "all_gather"]
Algorithms = Algorithm | Mapping[str, Algorithm]  # one for every axis, or one for each
Codecs = Mapping[str, Codec]


@dataclass(frozen=True)
class Phase:
    """One direction along one axis.

    Args:
        axis: Name of the axis.
        kind: "reduce_scatter" or "all_gather".
        algorithm: Gives the rounds; TwoShot where there is a codec.
        codec: Encodes what is sent; None sends values as they are.
    """

    axis: str
    kind: Kind
    algorithm: Algorithm
    codec: Codec | None = None

    @property
    def adds(self) -> bool:
        """Whether this is a reduce-scatter."""
        return self.kind == "reduce_scatter"

    def round(self, ranks: int, index: int) -> Round:
        """Round `index` over an axis of `ranks`."""
        turn = self.algorithm.reduce_scatter if self.adds else self.algorithm.all_gather
        return turn(ranks, index)


def phases(
    topology: Topology, algorithm: Algorithms, codecs: Codecs | None = None, *, first: int = 0
) -> tuple[Phase, ...]:
    """Reduce-scatter along a₁, …, aₖ, then all-gather along aₖ, …, a₁. Axes of one rank take no part.

    Args:
        topology: The axes, innermost first.
        algorithm: One for every axis, or one by axis name. A coded axis takes TwoShot whatever is given.
        codecs: By axis name.
        first: Begin with this axis of those that take part (counted cyclically): the rotated order.

    Raises:
        TopologyError: A codec or an algorithm for an axis that does not exist, or an axis without an algorithm.
    """
    codecs = codecs or {}
    _check_names(topology, codecs, "codec")
    if not isinstance(algorithm, Algorithm):
        _check_names(topology, algorithm, "algorithm")
    axes = taking_part(topology)
    order = axes[first % len(axes) :] + axes[: first % len(axes)] if axes else ()
    down = [_phase(axis, algorithm, codecs.get(axis)) for axis in order]
    up = [Phase(phase.axis, "all_gather", phase.algorithm, phase.codec) for phase in reversed(down)]
    return tuple(down + up)


def rotations(
    topology: Topology, algorithm: Algorithms, codecs: Codecs | None = None, *, rotate: bool = True
) -> tuple[tuple[Phase, ...], ...]:
    """The programs of the parts of a tensor: k parts for k axes, part i beginning with axis i; one part unrotated."""
    parts = max(1, len(taking_part(topology))) if rotate else 1
    return tuple(phases(topology, algorithm, codecs, first=first) for first in range(parts))


def taking_part(topology: Topology) -> tuple[str, ...]:
    """Axes of more than one rank, innermost first."""
    return tuple(axis for axis, size in topology.axes.items() if size > 1)


def granule(codecs: Codecs | None) -> int:
    """Elements that stay together wherever a tensor is cut: the least common multiple of what the codecs want."""
    return math.lcm(1, *(codec.granule for codec in (codecs or {}).values()))


def encode_seed(codec: Codec, seed: int, start: int, position: int, adds: bool) -> int:
    """The seed of one encoding, so that no two share their random choices unless the codec wants ranks to agree.

    Args:
        codec: Encodes.
        seed: Of the whole all-reduce, the same on every rank.
        start: First element encoded, counted in the tensor.
        position: Of the rank that encodes, on its line.
        adds: Whether in a reduce-scatter.
    """
    return seed + 2 * start + (not adds) + (0 if codec.aligned else (position + 1) << 48)


def _phase(axis: str, algorithm: Algorithms, codec: Codec | None) -> Phase:
    if codec is not None:
        return Phase(axis, "reduce_scatter", TwoShot(), codec)
    if isinstance(algorithm, Algorithm):
        return Phase(axis, "reduce_scatter", algorithm)
    if axis not in algorithm:
        raise TopologyError(f"axis {axis} has neither an algorithm nor a codec; algorithms: {', '.join(algorithm)}")
    return Phase(axis, "reduce_scatter", algorithm[axis])


def _check_names(topology: Topology, names: Sequence[str] | Mapping[str, object], what: str) -> None:
    for name in names:
        if name not in topology.axes:
            raise TopologyError(f"a {what} is given for axis {name!r}; {topology} has {', '.join(topology.axes)}")
