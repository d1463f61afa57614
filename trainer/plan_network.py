"""What `gradwire plan` foretells of the communication: here, and on 10, 100 and 1000 times the hosts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gradwire.comm import CodecSpeed, Link, Topology, Way, price
from gradwire.comm.codecs import Codec
from gradwire.comm.compressions import segment_mb
from gradwire.comm.prediction import ALGORITHMS, Costs, predict
from gradwire.trainer.assemble import build_model, codecs_of
from gradwire.trainer.config.communication import axes_of
from gradwire.trainer.config.hosts_apart import trains_apart
from gradwire.trainer.errors import PredictionError
from gradwire.trainer.launch.hosts import Hosts
from gradwire.trainer.launch.local import count_processes

TIMES = (1, 10, 100, 1000)
_SHARED = "node"  # the axis whose link all ranks of a host share
_LOCAL = Link(5e9, 20e-6)  # taken for axes that no --link names, but for `node`


@dataclass(frozen=True)
class Scale:
    """One size of the cluster.

    Args:
        times: As many hosts as configured, times this.
        ranks: In all.
        axes: Of the topology, as text.
        way: How gradients are reduced; of `auto` what is foretold to be fastest.
        communication: Seconds that reducing an update's gradients takes.
    """

    times: int
    ranks: int
    axes: str
    way: str
    communication: float


@dataclass(frozen=True)
class Network:
    """The prediction.

    Args:
        gradient_bytes: Of an update's gradients, float32.
        compute: Seconds that an update takes to compute, where they were given.
        scales: From the configured cluster on.
        assumptions: What the prediction rests on.
    """

    gradient_bytes: int
    compute: float | None
    scales: tuple[Scale, ...]
    assumptions: tuple[str, ...]

    def to_text(self) -> str:
        """A table, and what it rests on."""
        lines = [f"\ncommunication  {self.gradient_bytes:,} bytes of gradients an update, foretold from given links"]
        width = max(len(scale.axes) for scale in self.scales)
        for scale in self.scales:
            took = f"{scale.times:>5} × hosts  {scale.axes:<{width}}  {scale.communication:>10.4g} s  {scale.way}"
            lines.append(took + self._step(scale))
        return "\n".join([*lines, *(f"  assumed: {each}" for each in self.assumptions)]) + "\n"

    def to_record(self) -> dict[str, Any]:
        """For JSON; with the bounds of a step's seconds where compute is known."""
        scales = [asdict(scale) | self._bounds(scale) for scale in self.scales]
        return asdict(self) | {"scales": scales, "assumptions": list(self.assumptions)}

    def _bounds(self, scale: Scale) -> dict[str, float]:
        if self.compute is None:
            return {}
        bounds = max(self.compute, scale.communication), self.compute + scale.communication
        return dict(zip(("step_overlapped", "step_apart"), bounds, strict=True))

    def _step(self, scale: Scale) -> str:
        bounds = self._bounds(scale).values()
        return "; a step takes {:.4g} to {:.4g} s".format(*bounds) if bounds else ""


def foretell(
    config: Mapping[str, Any], links: Sequence[str], compute: float | None = None, allow: tuple[str, ...] = ()
) -> Network:
    """The prediction for a configuration.

    Args:
        config: Resolved.
        links: As `AXIS=RATE,LATENCY`.
        compute: Seconds that an update takes to compute.
        allow: See `component`.

    Raises:
        PredictionError: A link of no axis, a codec that has no price, or a single rank.
        CommError: No link.
    """
    if trains_apart(config):
        raise PredictionError("what strategy=diloco sends from time to time is not foretold: leave --link out")
    comm, launch = config["comm"], config["launch"]
    processes = count_processes(launch["processes"], launch["device"])
    axes = axes_of(comm, processes, processes * Hosts.of(launch["hosts"]).least)
    given = dict(_named(link, list(axes)) for link in links)
    codecs = {axis: codec for axis, codec in codecs_of(comm["codecs"], allow).items() if axes.get(axis, 1) > 0}
    priced = {axis: codec for axis, codec in codecs.items() if isinstance(codec, Codec)}
    if codecs.keys() != priced.keys():
        raise PredictionError("PowerSGD's time depends on the model's matrices and is not foretold: try another codec")
    found = {axis: given.get(axis, _LOCAL) for axis in axes}
    nbytes = _gradient_bytes(config, allow)
    scales = (_scale(comm, Topology(**_grown(axes, times)), found, priced, nbytes, times) for times in TIMES)
    return Network(nbytes, compute, tuple(scales), tuple(_assumptions(axes, given, priced, comm)))


def _named(text: str, axes: list[str]) -> tuple[str, Link]:
    axis, _, link = text.partition("=")
    if axis not in axes:
        raise PredictionError(f"--link {text}: there is no axis {axis!r}; comm.topology has {', '.join(axes)}")
    return axis, Link.parse(link)


def _gradient_bytes(config: Mapping[str, Any], allow: tuple[str, ...]) -> int:
    with torch.device("meta"):
        model = build_model(config, allow)
    return 4 * sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _grown(axes: Mapping[str, int], times: int) -> dict[str, int]:
    """More hosts lengthen the outermost axis."""
    last = list(axes)[-1]
    return {axis: size * (times if axis == last else 1) for axis, size in axes.items()}


def _scale(
    comm: Mapping[str, Any],
    topology: Topology,
    links: Mapping[str, Link],
    codecs: Mapping[str, Codec],
    nbytes: int,
    times: int,
) -> Scale:
    share = topology.stride(_SHARED) if _SHARED in topology.axes else 1
    costs = Costs(
        {axis: link.shared(share) if axis == _SHARED else link for axis, link in links.items()},
        {axis: CodecSpeed() for axis in codecs},
    )
    used = {axis: codec for axis, codec in codecs.items() if topology.axes[axis] > 1}
    seconds = {
        str(way): _ring(topology, links, nbytes) if way.native else predict(topology, used, way, nbytes, costs)
        for way in _ways(comm, used)
    }
    best = min(seconds, key=seconds.__getitem__)
    return Scale(times, topology.size, str(topology), best, seconds[best])


def _ways(comm: Mapping[str, Any], codecs: Mapping[str, Codec]) -> Iterator[Way]:
    """What the configuration asks for; with `auto` the native one and every algorithm."""
    name, rotate, coded = comm["algorithm"], comm["rotate"], bool(codecs)
    size = comm["segment_mb"] or segment_mb(codecs)
    if name != "auto":
        yield Way("two_shot" if name == "native" and coded else name, size, rotate, coded)
        return
    yield Way("native")
    for algorithm in ALGORITHMS:
        for uses in {coded, False}:
            yield Way(algorithm, size, rotate, uses)


def _ring(topology: Topology, links: Mapping[str, Link], nbytes: int) -> float:
    """The backend's own, as one ring through all ranks that is as fast as the slowest link."""
    used = [links[axis] for axis, size in topology.axes.items() if size > 1]
    if not used:
        return 0.0
    slowest = Link(min(link.bandwidth for link in used), max(link.latency for link in used))
    return price(Topology(ring=topology.size), {"ring": slowest}, nbytes, ALGORITHMS["ring"]).seconds


def _assumptions(
    axes: Mapping[str, int], given: Mapping[str, Link], codecs: Mapping[str, Codec], comm: Mapping[str, Any]
) -> Iterator[str]:
    for axis in axes:
        if axis in given:
            link, told = given[axis], "as given"
        else:
            link, told = _LOCAL, "not given"
        rate = f"{8 * link.bandwidth / 1e9:g} Gbit/s and {1e6 * link.latency:g} us along {axis}, {told}"
        yield rate + (", for each host; its ranks share it" if axis == _SHARED else ", for each rank")
    if comm["algorithm"] in ("native", "auto"):
        yield "the backend's own all-reduce is one ring through all ranks, at the rate of the slowest link"
    if codecs:
        yield "encoding and decoding take no time"
    yield f"more hosts lengthen {list(axes)[-1]}, links are equal and nobody else uses them"
    yield "each rank computes as much on more hosts; a step is between full overlap and none"
