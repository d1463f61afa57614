"""All-reduces side by side over slow links between hosts, in one run, against the backend's own and against the link.

    python -m benchmarks.all_reduce_netlab [--hosts 2] [--ranks-per-host 2] [--rate 200mbit] [--sizes 64MB]
        [--contenders gloo,p2p,ring,ring/int8,…] [--rounds 12] [--json FILE]

Needs root (see benchmarks/netlab.py). In each round every contender runs a block of calls, in an order that is reversed
from round to round; a block's time is the slowest rank's. Ratios are of paired rounds, with a 95 % interval from a
bootstrap over the rounds. The bound is the bytes that must leave a host, encoded where a codec is used, over the link's
rate. Bytes are those the host's device counted. After every block the results of all ranks are compared bit for bit.

Contenders: gloo, p2p[/CODEC] (a bare exchange of the same bytes; ours is compared with the one of its own codec) and
ours, ALGORITHM[/CODEC][@SEGMENT_MB][+rotate].
"""

import argparse
import json
import os
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from benchmarks.all_reduce_contenders import Contender, Run, Shape, contender
from benchmarks.netlab import Netlab
from benchmarks.paired import compare, interval
from gradwire.comm import CommError

CONTENDERS = "gloo,p2p,ring,ring/int8,ring/int4,ring/top_k,auto"
UNITS = {"B": 1, "KB": 2**10, "MB": 2**20}
COPIES = 256 * 2**20  # bytes of inputs that one block may hold
PATIENCE = 1800  # seconds that one size may take


@dataclass(frozen=True)
class Job:
    """What is measured at one size."""

    shape: Shape
    elements: int
    names: tuple[str, ...]
    rounds: int
    block_s: float
    bytes_per_second: float | None

    def calls(self, each: Contender) -> int:
        """In one block: about `block_s` long at the link's rate, as many as there is memory for."""
        seconds = each.payload(self.shape, self.elements) / (self.bytes_per_second or 1e9)
        most = min(200, COPIES // (4 * self.elements))
        return max(1, min(most, round(self.block_s / max(seconds, 1e-6))))


@dataclass(frozen=True)
class Block:
    """Of one call on average: seconds and bytes sent by this rank's host; and a digest of what the rank holds."""

    seconds: float
    sent: float
    digest: str


@dataclass(frozen=True)
class Report:
    """One rank's, by contender; an error is that of the rank's first result against the exact mean."""

    blocks: dict[str, list[Block]]
    errors: dict[str, float]
    unavailable: dict[str, str]


def measure(rank: int, job: Job) -> Report:
    """On one rank: make every contender, check it, then let them take turns."""
    report = Report({}, {}, {})
    source = _input(rank, job.elements)
    exact = sum(_input(each, job.elements).double() for each in range(job.shape.ranks)) / job.shape.ranks
    assert isinstance(exact, Tensor)
    runs: dict[str, Run] = {}
    for name in job.names:
        try:
            runs[name] = contender(name).make(job.shape, job.elements)
        except CommError as error:
            report.unavailable[name] = str(error)
            continue
        report.errors[name] = _relative_error(runs[name], source, exact)
        report.blocks[name] = []
    for turn in range(job.rounds):
        for name in runs if turn % 2 == 0 else reversed(runs):
            report.blocks[name].append(_block(runs[name], source, job.calls(contender(name))))
    return report


def _input(rank: int, elements: int) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(rank))


def _relative_error(run: Run, source: Tensor, exact: Tensor) -> float:
    result = source.clone()
    run(result)
    return float((result.double() - exact).norm() / exact.norm())


def _block(run: Run, source: Tensor, calls: int) -> Block:
    tensors = [source.clone() for _ in range(calls)]
    dist.barrier()
    sent = _sent_bytes()
    dist.barrier()
    start = time.perf_counter()
    for tensor in tensors:
        run(tensor)
    seconds = (time.perf_counter() - start) / calls
    dist.barrier()
    return Block(seconds, (_sent_bytes() - sent) / calls, xxhash.xxh3_64_hexdigest(tensors[-1].numpy().data))


def _sent_bytes() -> int:
    device = os.environ["GLOO_SOCKET_IFNAME"]
    return int(Path(f"/sys/class/net/{device}/statistics/tx_bytes").read_text())


def rows(reports: Sequence[Report], job: Job) -> dict[str, dict[str, Any]]:
    """By contender: medians, and intervals of how many times as fast as gloo, the bound and a bare exchange it is."""
    seconds = {
        name: [max(block.seconds for block in turn) for turn in zip(*_of(reports, name), strict=True)]
        for name in reports[0].blocks
    }
    table: dict[str, dict[str, Any]] = {}
    for name, taken in seconds.items():
        each = contender(name)
        payload = each.payload(job.shape, job.elements)
        row: dict[str, Any] = {
            "ms": 1e3 * statistics.median(taken),
            "payload": payload,
            "sent": max(statistics.median(block.sent for block in blocks) for blocks in _of(reports, name)),
            "calls": job.calls(each),
            "seconds": taken,
        }
        if job.bytes_per_second and payload:
            row["of_bound"] = interval([payload / job.bytes_per_second / one for one in taken])
        for other, key in (("gloo", "over_gloo"), (each.exchange, "over_p2p")):
            if other in seconds:
                row[key] = compare(seconds[other], taken)
        if each.reduces:
            row["relative_error"] = max(report.errors[name] for report in reports)
            turns = zip(*_of(reports, name), strict=True)
            row["same_bits"] = all(len({block.digest for block in turn}) == 1 for turn in turns)
        table[name] = row
    return table | {name: {"unavailable": reason} for name, reason in reports[0].unavailable.items()}


def _of(reports: Sequence[Report], name: str) -> list[list[Block]]:
    return [report.blocks[name] for report in reports]


def show(size: str, job: Job, table: dict[str, dict[str, Any]], rate: str | None) -> None:
    """Print one size's table."""
    shape = job.shape
    axes = " × ".join(f"{axis}={count}" for axis, count in shape.axes)
    print(f"\n{size} fp32, {shape.hosts} hosts × {shape.ranks_per_host} ranks ({axes}), {rate or 'no limit'}")
    print(
        f"  {'':22}{'ms':>9}  {'× gloo [95 %]':>22}  {'of the bound':>20}  {'of p2p':>20}"
        f"{'must send':>11}{'sent, MB':>10}{'error':>10}  same bits"
    )
    for name, row in table.items():
        if "unavailable" in row:
            print(f"  {name:22}not available: {row['unavailable']}")
            continue
        ratios = [_ratio(row.get(key)) for key in ("over_gloo", "of_bound", "over_p2p")]
        error = f"{row['relative_error']:.2g}" if "relative_error" in row else "-"
        same = {True: "yes", False: "NO", None: "-"}[row.get("same_bits")]
        print(
            f"  {name:22}{row['ms']:9.2f}  {ratios[0]:>22}  {ratios[1]:>20}  {ratios[2]:>20}"
            f"{row['payload'] / 1e6:11.3f}{row['sent'] / 1e6:10.3f}{error:>10}  {same}"
        )


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
    results: dict[str, Any] = {"hosts": options.hosts, "ranks_per_host": options.ranks_per_host, "rate": rate}
    with Netlab(options.hosts, rate) as lab, lab.ranks(options.ranks_per_host, timeout=PATIENCE) as ranks:
        for size, elements in options.sizes.items():
            job = Job(shape, elements, options.contenders, options.rounds, options.block_s, lab.bytes_per_second)
            table = rows(ranks(measure, job), job)
            show(size, job, table, rate)
            results[size] = {"job": asdict(job), "rows": table}
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    from benchmarks.all_reduce_netlab import main  # what ranks call must not lie in __main__

    main()
