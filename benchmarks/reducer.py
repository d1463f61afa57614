"""Time of one training step with our reducer against torch's DDP, and against no communication at all, in one run.

    python benchmarks/reducer.py [--json FILE] [--pairs N] [--ranks N] [--width N] [--layers N] [--batch N]

Every process is limited to one thread. A block is a few steps (clear gradients, forward, backward, SGD) of one model.
Each contender's blocks alternate with DDP's (D X, X D, …); its ratio is the median over these pairs of neighboring
blocks, with the 95 % interval of that median.
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
    """One contender: median steps, its own and DDP's beside it, and its time as a share of DDP's."""

    name: str
    step_ms: float
    ddp_step_ms: float
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


Make = Callable[[Job], nn.Module]
REFERENCE: Make = lambda job: DistributedDataParallel(network(job))  # noqa: E731
CONTENDERS: dict[str, Make] = {
    "gradwire": ours,
    "torch DDP, gradients as views": lambda job: DistributedDataParallel(network(job), gradient_as_bucket_view=True),
    "torch DDP again": REFERENCE,
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


def compare(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Median of the paired ratios and its 95 % interval (order statistics: no assumption about the noise)."""
    ratios = sorted(one / other for one, other in pairs)
    reach = 0.98 * math.sqrt(len(ratios))  # 1.96 standard deviations of a fair coin thrown len(ratios) times
    low, high = math.floor(len(ratios) / 2 - reach), math.ceil(len(ratios) / 2 + reach)
    return statistics.median(ratios), ratios[max(low, 0)], ratios[min(high, len(ratios) - 1)]


def measure(rank: int, port: int, job: Job) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(job.ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    inputs = torch.randn(job.batch, job.width, generator=torch.Generator().manual_seed(rank))
    models = {name: make(job) for name, make in {"torch DDP": REFERENCE, **CONTENDERS}.items()}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-3) for name, model in models.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    for pair in range(-2, job.pairs):  # two rounds to warm up
        for name in CONTENDERS:
            order = ("torch DDP", name) if pair % 2 else (name, "torch DDP")
            taken = {each: block(models[each], optimizers[each], inputs, job) for each in order}
            if pair >= 0:
                times[name].append((taken[name], taken["torch DDP"]))
    if rank == 0:
        report(times, job)
    dist.barrier()
    dist.destroy_process_group()


def report(times: dict[str, list[tuple[float, float]]], job: Job) -> None:
    rows = [
        Row(name, *(1e3 * statistics.median(each) for each in zip(*pairs, strict=True)), *compare(pairs))
        for name, pairs in times.items()
    ]
    print(f"{job.ranks} ranks, gloo, one thread each; {job.layers} layers of {job.width}², batch {job.batch} a rank")
    print(f"{job.pairs} alternated blocks of {job.steps} steps; ratio below 1 is faster than torch DDP\n")
    print(f"{'':32}{'step, ms':>10}{'DDP, ms':>10}{'ratio':>8}   95 % interval")
    for row in rows:
        print(
            f"{row.name:32}{row.step_ms:10.1f}{row.ddp_step_ms:10.1f}{row.ratio:8.3f}   {row.low:.3f} to {row.high:.3f}"
        )
    if job.json:
        Path(job.json).write_text(json.dumps({"job": asdict(job), "rows": [asdict(row) for row in rows]}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128, help="samples a rank")
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--steps", type=int, default=2, help="steps in a block")
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
