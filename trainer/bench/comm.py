"""`gradwire bench comm` on one rank: the contest at every size, its table, its JSON and its picture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from gradwire.comm import CommError, Topology
from gradwire.comm import codecs as codec_names
from gradwire.comm.all_reduce import AlgorithmName
from gradwire.comm.benchmark import Contest, Effort, Row, Shape, faults, rows
from gradwire.comm.measure import measure as measure_links
from gradwire.trainer.bench import comm_picture
from gradwire.trainer.bench.errors import BenchUsageError
from gradwire.trainer.bench.running import Stopped, conclude, pulse, say, write_json
from gradwire.trainer.launch.context import WorkerContext
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.worker import main

PROGRAM = ("-m", "gradwire.trainer.bench.comm")
_BLOCK = 0.05  # seconds of calls in a turn
_PATIENCE = 60.0  # seconds for one size, once every contender had three turns


def algorithms() -> list[str]:
    """Those that an AllReduce knows."""
    return list(get_args(AlgorithmName))


def codecs() -> list[str]:
    """Those that compress."""
    return [name for name in codec_names.NAMES if name != "none"]


@dataclass(frozen=True)
class Findings:
    """All that was measured.

    Attributes:
        topology: Ranks by axis, fastest first.
        hosts: Positions along the axis of the slow links.
        ranks: In all.
        backend: The backend whose own all-reduce the others are compared with.
        device: Kind of device.
        link: Bytes a second that a host can send to another.
        link_from: "given" or "measured".
        sizes: By size the rows of all contenders.
        unavailable: Why a contender did not take part.
        wrong: What was wrong with results, a line each.
    """

    topology: dict[str, int]
    hosts: int
    ranks: int
    backend: str
    device: str
    link: float
    link_from: str
    sizes: dict[str, dict[str, Row]]
    unavailable: dict[str, str]
    wrong: list[str]


def measure(config: Mapping[str, Any], context: WorkerContext) -> int:
    """Measure on this rank, together with the others; the first rank tells. The exit code.

    Raises:
        BenchUsageError: One rank alone, or axes of another number of ranks.
        WrongResultError: A result was wrong; all others were told before.
    """
    try:
        findings = _measure(context)
    except Stopped:
        return int(ExitCode.PREEMPTED)
    if context.rank == 0:
        _write(findings, context.arguments)
    return conclude(findings.wrong, context)


def _measure(context: WorkerContext) -> Findings:
    arguments = context.arguments
    topology = topology_of(arguments["axes"], context.world_size)
    shape = Shape.of(topology)
    backend = "nccl" if context.device.type == "cuda" else "gloo"
    link = arguments["link"] or _link(topology, shape, context.device)
    contest = Contest(shape, [backend, *_names(arguments)], context.device)
    if context.rank == 0:
        say(heading(topology, backend, link, "given" if arguments["link"] else "measured"))
        for name, reason in contest.unavailable.items():
            say(f"{name} is not available: {reason}")
    tables: dict[str, dict[str, Row]] = {}
    effort = Effort(arguments["rounds"], _BLOCK, _PATIENCE)
    for size, elements in arguments["sizes"].items():
        measured = contest.measure(elements, effort, lambda name, size=size: pulse(context, f"{name} at {size}"))  # type: ignore[misc]
        tables[size] = rows(measured, shape, elements, backend, link)
        if context.rank == 0:
            say(to_text(size, tables[size], backend))
    return Findings(
        topology.axes,
        shape.hosts,
        shape.ranks,
        backend,
        context.device.type,
        link,
        "given" if arguments["link"] else "measured",
        tables,
        contest.unavailable,
        [f"{size}: {fault}" for size, table in tables.items() for fault in faults(table)],
    )


def topology_of(axes: Mapping[str, int] | None, ranks: int) -> Topology:
    """The axes that are given, or those that are found.

    Raises:
        BenchUsageError: One rank alone, or axes of another number of ranks.
    """
    if ranks == 1:
        raise BenchUsageError("One rank has nobody to reduce with: start several, as with launch.processes=2.")
    topology = Topology.detect() if axes is None else Topology(**axes)
    try:
        topology.check(ranks)
    except CommError as error:
        raise BenchUsageError(f"--axes: {error}.") from error
    return topology


def _link(topology: Topology, shape: Shape, device: torch.device) -> float:
    """What a host's link carries: its ranks' shares together."""
    return measure_links(topology, device=device)[shape.slow_axis].bandwidth * shape.ranks_per_host


def _names(arguments: Mapping[str, Any]) -> list[str]:
    plain, coded = (
        known if arguments[kind] is None else [name for name in arguments[kind].split(",") if name]
        for kind, known in (("algorithms", algorithms()), ("codecs", codecs()))
    )
    return [*plain, *(f"native/{codec}" for codec in coded)]


def heading(topology: Topology, backend: str, link: float, link_from: str) -> str:
    """What is compared."""
    return (
        f"{topology.size} ranks, {topology}; a host's link, {link_from}: {link * 8 / 1e6:,.0f} Mbit/s.\n"
        "bytes sent: of a call, by a host's network interface (by a rank, where that cannot be read).\n"
        "bound: the least time that a host's bytes take on the link, over the time taken.\n"
        f"× {backend}: how many times as fast as its own all-reduce, in paired turns."
    )


def to_text(size: str, table: Mapping[str, Row], backend: str) -> str:
    """One size's table."""
    return "\n".join(_lines(size, table, backend))


def _lines(size: str, table: Mapping[str, Row], backend: str) -> Iterator[str]:
    against = f"× {backend} [95 %]"
    yield (
        f"\n{size:22}{'ms':>10}{'algbw':>10}{'busbw':>10} MB/s"
        f"{'bytes sent':>13}{'bound':>7}  {against:>22}{'error':>10}"
    )
    wrong = {fault.partition(":")[0] for fault in faults(table)}
    for name, row in table.items():
        wire = "-" if row.wire is None else f"{row.wire:,.0f}"
        bound = "-" if row.of_bound is None else f"{row.of_bound[0]:.2f}"
        ratio = "-" if row.over_backend is None else "{:.2f} [{:.2f}, {:.2f}]".format(*row.over_backend)
        error = "exact" if row.error == 0 else f"{row.error:.2g}"
        yield (
            f"{name:22}{row.milliseconds:10.3f}{row.algbw / 1e6:10.1f}{row.busbw / 1e6:10.1f}     {wire:>13}{bound:>7}"
            f"  {ratio:>22}{error:>10}{'  WRONG' if name in wrong else ''}"
        )


def _write(findings: Findings, arguments: Mapping[str, Any]) -> None:
    write_json(findings, arguments)
    if arguments["plot"] is not None:
        comm_picture.save(Path(arguments["plot"]), findings.sizes, findings.backend, _bytes_of(arguments["sizes"]))


def _bytes_of(sizes: Mapping[str, int]) -> Sequence[int]:
    return [4 * elements for elements in sizes.values()]


if __name__ == "__main__":
    main(body=measure)
