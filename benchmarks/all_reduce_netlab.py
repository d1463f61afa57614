"""All-reduces side by side over slow links between hosts, in one run, against the backend's own and against the link.

    python -m benchmarks.all_reduce_netlab [--hosts 2] [--ranks-per-host 2] [--rate 200mbit] [--sizes 64MB]
        [--contenders gloo,p2p,ring,ring/int8,…] [--rounds 12] [--json FILE]

Needs root (see benchmarks/netlab.py). In each round every contender runs a block of calls, in an order that is reversed
from round to round; a block's time is the slowest rank's. Ratios are of paired rounds, with a 95 % interval from a
bootstrap over the rounds. The bound is the bytes that must leave a host, encoded where a codec is used, over the link's
rate. Bytes are those the host's device counted. After every block the results of all ranks are compared bit for bit and
with the exact mean; it ends with 1 where one is wrong.

Contenders: gloo, p2p[/CODEC] (a bare exchange of the same bytes; ours is compared with the one of its own codec) and
ours, ALGORITHM[/CODEC][@SEGMENT_MB][+rotate].
"""

import argparse
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.netlab import Netlab
from gradwire.comm.benchmark import Contest, Effort, Row, Shape, contender, faults, rows

CONTENDERS = "gloo,p2p,ring,ring/int8,ring/int4,ring/top_k,auto"
UNITS = {"B": 1, "KB": 2**10, "MB": 2**20}
PATIENCE = 1800  # seconds that one size may take


@dataclass(frozen=True)
class Job:
    """What is measured at one size."""

    shape: Shape
    elements: int
    names: tuple[str, ...]
    effort: Effort
    bytes_per_second: float | None


@dataclass(frozen=True)
class Table:
    """What was found at one size, by contender; and why others did not take part."""

    rows: dict[str, Row]
    unavailable: dict[str, str]


def measure(rank: int, job: Job) -> Table:
    """On one rank: the contest; all ranks answer the same."""
    contest = Contest(job.shape, job.names)
    measured = contest.measure(job.elements, job.effort)
    return Table(rows(measured, job.shape, job.elements, "gloo", job.bytes_per_second), contest.unavailable)


def show(size: str, job: Job, table: Table, rate: str | None) -> None:
    """Print one size's table."""
    shape = job.shape
    axes = " × ".join(f"{axis}={count}" for axis, count in shape.axes)
    print(f"\n{size} fp32, {shape.hosts} hosts × {shape.ranks_per_host} ranks ({axes}), {rate or 'no limit'}")
    print(
        f"  {'':22}{'ms':>9}  {'× gloo [95 %]':>22}  {'of the bound':>20}  {'of p2p':>20}"
        f"{'must send':>11}{'sent, MB':>10}{'error':>10}  same bits"
    )
    for name, row in table.rows.items():
        ratios = [_ratio(value) for value in (row.over_backend, row.of_bound, row.over_exchange)]
        error = "-" if row.error is None else f"{row.error:.2g}"
        same = {True: "yes", False: "NO", None: "-"}[row.same_bits]
        print(
            f"  {name:22}{row.milliseconds:9.2f}  {ratios[0]:>22}  {ratios[1]:>20}  {ratios[2]:>20}"
            f"{row.payload / 1e6:11.3f}{(row.wire or 0) / 1e6:10.3f}{error:>10}  {same}"
        )
    for name, reason in table.unavailable.items():
        print(f"  {name:22}not available: {reason}")


def _ratio(values: tuple[float, float, float] | None) -> str:
    return "-" if values is None else "{:.3f} [{:.3f}, {:.3f}]".format(*values)


def _sizes(text: str) -> dict[str, int]:
    """Elements of float32 by size."""
    return {size: _bytes(size) // 4 for size in text.split(",")}


def _bytes(size: str) -> int:
    match = re.fullmatch(r"(\d+)(B|KB|MB)", size)
    if match is None or int(match[1]) * UNITS[match[2]] < 4:
        raise argparse.ArgumentTypeError(f"{size!r} is no size; expected a number of B, KB or MB, 4B at least")
    return int(match[1]) * UNITS[match[2]]


def _names(text: str) -> tuple[str, ...]:
    try:
        return tuple(contender(name).name for name in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _axes(text: str | None, hosts: int, ranks_per_host: int) -> tuple[tuple[str, int], ...]:
    if text is not None:
        pairs = [axis.partition("=") for axis in text.split(",")]
        return tuple((name, int(size)) for name, _, size in pairs)
    return (("node", hosts),) if ranks_per_host == 1 else (("local", ranks_per_host), ("node", hosts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--axes", help="for ours, fastest first; local=RANKS,node=HOSTS where not given")
    parser.add_argument("--rate", default="200mbit", help="of each host's link, or 'none'")
    parser.add_argument("--sizes", type=_sizes, default="64MB", help="of the tensor, in B, KB and MB of 1024")
    parser.add_argument("--contenders", type=_names, default=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--block-s", type=float, default=0.5, help="seconds of calls in a block, about")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    reason = Netlab.requirements()
    if reason:
        parser.exit(1, f"no laboratory: {reason}\n")
    shape = Shape(options.hosts, options.ranks_per_host, _axes(options.axes, options.hosts, options.ranks_per_host))
    rate = None if options.rate == "none" else options.rate
    wrong: list[str] = []
    results: dict[str, Any] = {"hosts": options.hosts, "ranks_per_host": options.ranks_per_host, "rate": rate}
    with Netlab(options.hosts, rate) as lab, lab.ranks(options.ranks_per_host, timeout=PATIENCE) as ranks:
        for size, elements in options.sizes.items():
            job = Job(
                shape, elements, options.contenders, Effort(options.rounds, options.block_s), lab.bytes_per_second
            )
            table: Table = ranks(measure, job)[0]
            show(size, job, table, rate)
            wrong += [f"{size}: {fault}" for fault in faults(table.rows)]
            results[size] = {"elements": elements, **asdict(table)}
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))
    if wrong:
        parser.exit(1, "".join(f"{line}\n" for line in wrong))


if __name__ == "__main__":
    from benchmarks.all_reduce_netlab import main  # what ranks call must not lie in __main__

    main()
