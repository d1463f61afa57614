"""The trainer's overhead: updates per second, memory and start-up time against peers, in one run.

    python -m benchmarks.trainer [--json FILE] [--sizes tiny,small,medium,large] [--rounds N] [--peers bare,gradwire,…]

Every contestant trains the same decoder on the same random tokens on two ranks (gloo): AdamW, gradient clipping, a
learning-rate schedule, a loss logged every ten updates. In each round every contestant trains a short block, in an
order that is reversed from round to round; the time of a block is that of its updates after the first three. Ratios are
of paired rounds, with a 95 % interval from a bootstrap over the rounds. Memory is the peak of a fresh process.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from benchmarks.trainer_contestants import RUNNERS, SIZES, Job, Stopwatch
from gradwire.comm.benchmark.paired import compare

ROOT = Path(__file__).parents[1]


def worker(size: str, rounds: int, peers: list[str]) -> None:
    """One rank: alternate the contestants' blocks and write their times."""
    import logging

    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = Job(size)
    seconds: dict[str, list[float]] = {peer: [] for peer in peers}
    for turn in range(rounds):
        for peer in peers if turn % 2 == 0 else reversed(peers):
            watch = Stopwatch(job.updates)
            dist.barrier()
            RUNNERS[peer](job, watch)
            seconds[peer].append(watch.seconds / job.updates)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if dist.get_rank() == 0:
        Path(os.environ["BENCHMARK_OUTPUT"]).write_text(json.dumps({"seconds": seconds, "peak_mib": peak}))
    dist.destroy_process_group()


def torchrun(*arguments: str) -> dict[str, Any]:
    """Run this script under torchrun with two ranks and read what rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "BENCHMARK_OUTPUT": str(output),
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONWARNINGS": "ignore",
        }
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "-m",
            "benchmarks.trainer",
            *arguments,
        ]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if not output.exists():
            sys.exit(f"{' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
        result: dict[str, Any] = json.loads(output.read_text())
        return result


def measure(size: str, rounds: int, peers: list[str], memory: list[str]) -> dict[str, Any]:
    """Speed in alternated blocks; memory, of some of them, in processes of their own."""
    seconds = torchrun("--worker", size, "--rounds", str(rounds), "--peers", ",".join(peers))["seconds"]
    peaks = {peer: torchrun("--worker", size, "--rounds", "1", "--peers", peer)["peak_mib"] for peer in memory}
    rows = {}
    for peer in peers:
        rows[peer] = {
            "ms": 1000 * statistics.median(seconds[peer]),
            "ratio": compare(seconds[peer], seconds["bare"]),
            "peak_mib": peaks.get(peer),
            "seconds": seconds[peer],
        }
        if peer != "gradwire" and "gradwire" in peers:
            rows[peer]["gradwire_over_this"] = compare(seconds["gradwire"], seconds[peer])
    return rows


def show(size: str, rows: dict[str, Any]) -> None:
    print(f"\n{size}: {rows['bare']['ms']:.1f} ms a bare update")
    print(f"  {'':12} {'updates/s':>10} {'time / bare [95 %]':>26} {'gradwire / this [95 %]':>26} {'peak MiB':>9}")
    for peer, row in rows.items():
        ratio = "{:.3f} [{:.3f}, {:.3f}]".format(*row["ratio"])
        against = "{:.3f} [{:.3f}, {:.3f}]".format(*row["gradwire_over_this"]) if "gradwire_over_this" in row else ""
        peak = "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        print(f"  {peer:12} {1000 / row['ms']:10.1f} {ratio:>26} {against:>26} {peak:>9}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--peers", default=",".join(RUNNERS))
    parser.add_argument("--memory", help="whose memory is measured as well; all where not given")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    peers = arguments.peers.split(",")
    if arguments.worker:
        worker(arguments.worker, arguments.rounds, peers)
        return
    memory = peers if arguments.memory is None else arguments.memory.split(",")
    results: dict[str, Any] = {}
    for size in arguments.sizes.split(","):
        results[size] = measure(size, arguments.rounds, peers, memory)
        show(size, results[size])
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
