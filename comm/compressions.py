"""Compressions of an axis by name, with what they are configured with when nothing else is said."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from gradwire.comm import codecs
from gradwire.comm.buckets import Bucket
from gradwire.comm.compression import Compression
from gradwire.comm.errors import CodecError, CommError, TopologyError
from gradwire.comm.momentum import DeepGradientCompression
from gradwire.comm.power_sgd import PowerSGD
from gradwire.comm.program import taking_part
from gradwire.comm.topology import Topology

_COMPRESSIONS = MappingProxyType(
    {
        **{name: codecs.named(name) for name in codecs.NAMES},
        **{each.name: each for each in (DeepGradientCompression(), PowerSGD())},
    }
)

NAMES: tuple[str, ...] = tuple(_COMPRESSIONS)


def named(name: str) -> Compression:
    """The compression of this name, as it is by default.

    Raises:
        CodecError: There is none; says which name is near.
    """
    if name in _COMPRESSIONS:
        return _COMPRESSIONS[name]
    near = difflib.get_close_matches(name, NAMES, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise CodecError(f"no codec is called {name!r}: there are {', '.join(NAMES)}.{hint}")


def by_axis(topology: Topology, given: Mapping[str, Compression | str]) -> dict[str, Compression]:
    """What compresses the axes that take part.

    Raises:
        TopologyError: There is no such axis.
        CodecError: No codec of that name.
    """
    for axis in given:
        if axis not in topology.axes:
            raise TopologyError(f"there is a codec for the axis {axis!r}, and the topology is {topology}")
    made = {axis: named(codec) if isinstance(codec, str) else codec for axis, codec in given.items()}
    return {axis: codec for axis, codec in made.items() if codec.name != "none" and topology.axes[axis] > 1}


def check_low_rank(topology: Topology, made: Mapping[str, Compression], beside: str | None) -> None:
    """Raise where PowerSGD stands on another axis than the last one, or with `beside`.

    Raises:
        CommError: It does.
    """
    axes = [axis for axis, codec in made.items() if isinstance(codec, PowerSGD)]
    last = taking_part(topology)[-1:]
    if axes and (beside is not None or axes != list(last)):
        raise CommError(
            f"PowerSGD sums what the other axes have scattered, so it belongs on the last axis ({', '.join(last)}) and "
            f"the axes keep their order; found it {f'with {beside}' if beside else f'on {axes[0]} of {topology}'}"
        )


def segment_mb(made: Mapping[str, Compression]) -> float:
    """A size for segments, MiB, with which about one is on the wire at a time; from 4 to 16.

    Larger ones fill and drain the stages too slowly, smaller ones cost more processor time than they save.
    """
    ratios = [4 * _MANY / codec.nbytes(_MANY) for codec in made.values() if isinstance(codec, codecs.Codec)]
    return min(max(4.0, float(int(min(ratios, default=1.0) + 0.5))), 16.0)


def prepare(made: Iterable[Compression], buckets: Sequence[Bucket]) -> None:
    """Compile codecs for buckets so large that it is worth its time."""
    if sum(bucket.size for bucket in buckets) >= _WORTH_COMPILING:
        for codec in made:
            if isinstance(codec, codecs.Codec):
                codec.prepare(buckets[0].flat.device)


_MANY = 1 << 20  # elements
_WORTH_COMPILING = 16 << 20  # bytes of gradients from which on compiling the codecs saves more time than it takes
