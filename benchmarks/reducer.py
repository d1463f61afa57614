"""Time of one training step with our reducer against torch's DDP, and against no communication at all, in one run.

    python benchmarks/reducer.py [--json FILE] [--pairs N] [--ranks N] [--width N] [--layers N] [--batch N]

Every process is limited to one thread. Each model takes blocks of a few steps (clear gradients, forward, backward, SGD)
in turn, in an order that alternates (A B C, C B A, …); a ratio is the geometric mean over pairs of neighboring blocks,
with the 95 % interval of that mean.
"""

import argparse
import json
import math
import os
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.comm import AllReduce, attach

STUDENT_95 = 1.98  # two-sided, about 100 pairs


@dataclass(frozen=True)
class Job:
    """What is measured."""

    ranks: int
    layers: int
    width: int
    batch: int
    pairs: int
    steps: int
    bucket_mb: float
    in_place: bool
    json: str | None


@dataclass(frozen=True)
class Row:
    """One contender: its median step, and its time as a share of DDP's."""

    name: str
    step_ms: float
    ratio: float
    low: float
    high: float


def network(job: Job) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(job.width, job.width), nn.GELU()) for _ in range(job.layers)])


def ours(job: Job) -> nn.Module:
    model = network(job)
    attach(model, AllReduce(), bucket_mb=job.bucket_mb)
    return model


CONTENDERS: dict[str, Callable[[Job], nn.Module]] = {
    "torch DDP": lambda job: DistributedDataParallel(network(job)),
    "torch DDP, gradients as views": lambda job: DistributedDataParallel(network(job), gradient_as_bucket_view=True),
    "gradwire": ours,
    "no communication": network,
}


def block(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, job: Job) -> float:
    """Seconds a step, over one block that all ranks begin together."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(job.steps):
        optimizer.zero_grad(set_to_none=not job.in_place)
        model(inputs).square().mean().backward()
        optimizer.step()
    return (time.perf_counter() - start) / job.steps


def compare(times: list[float], reference: list[float]) -> tuple[float, float, float]:
    """Geometric mean of the paired ratios and its 95 % interval."""
    logs = [math.log(one / other) for one, other in zip(times, reference, strict=True)]
    half = STUDENT_95 * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.mean(logs)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def measure(rank: int, port: int, job: Job) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(job.ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    inputs = torch.randn(job.batch, job.width, generator=torch.Generator().manual_seed(rank))
    models = {name: make(job) for name, make in CONTENDERS.items()}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-3) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for pair in range(-2, job.pairs):  # two rounds to warm up
        for name in list(models) if pair % 2 else reversed(list(models)):
            seconds = block(models[name], optimizers[name], inputs, job)
            if pair >= 0:
                times[name].append(seconds)
    if rank == 0:
        report(times, job)
    dist.barrier()
    dist.destroy_process_group()


def report(times: dict[str, list[float]], job: Job) -> None:
    reference = times["torch DDP"]
    rows = [Row(name, 1e3 * statistics.median(taken), *compare(taken, reference)) for name, taken in times.items()]
    print(f"{job.ranks} ranks, gloo, one thread each; {job.layers} layers of {job.width}², batch {job.batch} a rank")
    print(f"{job.pairs} alternated blocks of {job.steps} steps; ratio below 1 is faster than torch DDP\n")
    print(f"{'':32}{'step, ms':>10}{'ratio':>8}   95 % interval")
    for row in rows:
        print(f"{row.name:32}{row.step_ms:10.1f}{row.ratio:8.3f}   {row.low:.3f} to {row.high:.3f}")
    if job.json:
        Path(job.json).write_text(json.dumps({"job": asdict(job), "rows": [asdict(row) for row in rows]}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128, help="samples a rank")
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=4, help="steps in a block")
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--in-place", action="store_true", help="clear gradients to zero instead of None")
    parser.add_argument("--json", help="write the result there")
    job = Job(**vars(parser.parse_args()))
    os.environ["OMP_NUM_THREADS"] = "1"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(measure, args=(port, job), nprocs=job.ranks)


if __name__ == "__main__":
    main()
