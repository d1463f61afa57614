"""What measuring the gradient noise scale costs: updates of the default decoder with a meter against updates without.

    python -m benchmarks.noise_cost [--json FILE] [--pairs N] [--batch N] [--micro-batches N]

One process, one thread. A pair is the same update run twice, measured and not, in alternating order: clear gradients,
forward and backward of every micro-batch, gradient norm, AdamW; measured, also the hooks, the reading of the reduced
norms and the noise scale. The ratio is the median over the pairs with its 95 % bootstrap interval. Measuring every n-th
update costs an n-th of that on average; the row for every 10th is also measured, over blocks of ten updates.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn import functional

from gradwire.comm.benchmark.paired import compare
from gradwire.schedulers.noise_scale import NoiseScale, total
from gradwire.trainer.models import Decoder
from gradwire.trainer.noise import Meter, NoiseMeter
from gradwire.trainer.norm_layers import NormLayerMeter
from gradwire.trainer.optimizers import parameter_groups

CONF = Path(__file__).parents[1] / "conf" / "model" / "decoder_small.yaml"


@dataclass(frozen=True)
class Job:
    """What is measured."""

    batch: int
    micro_batches: int
    context: int
    pairs: int
    blocks: int
    json: str | None


@dataclass(frozen=True)
class Row:
    """One way to measure: median milliseconds of an update without and with it, and the median ratio of the pairs."""

    name: str
    bare_ms: float
    measured_ms: float
    ratio: float
    low: float
    high: float


def decoder(context: int) -> Decoder:
    torch.manual_seed(0)
    config = OmegaConf.create(CONF.read_text())
    config.context = context
    sizes = {str(key): value for key, value in config.items() if key not in ("_target_", "init")}
    return Decoder(**sizes)


class Run:
    """Updates of one model, each measured or not."""

    def __init__(self, job: Job, make: Callable[[nn.Module, dict[str, list[nn.Parameter]]], Meter]) -> None:
        self.model = decoder(job.context)
        groups = parameter_groups(self.model, lr=1e-3, weight_decay=0.1)
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3)
        self.meter = make(self.model, {str(index): group["params"] for index, group in enumerate(groups)})
        self.scale = NoiseScale()
        ids = torch.randint(0, 256, (job.batch, job.context + 1), generator=torch.Generator().manual_seed(0))
        self.parts = ids.chunk(job.micro_batches)
        self.batch, self.targets = job.batch, job.batch * job.context

    def update(self, measured: bool) -> float:
        """Seconds of one update."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        for part in self.parts:
            with self.meter.micro_batch(part[:, 1:].numel()) if measured else nullcontext():
                (self.loss(part) / self.targets).backward()  # type: ignore[no-untyped-call]
        big = self.meter.big() if measured else {}
        torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        self.optimizer.step()
        if measured:
            norms = self.meter.norms(self.meter.local(), big, self.batch, self.targets)
            self.scale.update(total(norms.values()))
        return time.perf_counter() - start

    def loss(self, ids_BT: Tensor) -> Tensor:
        logits_BTV = self.model(ids_BT[:, :-1])
        return functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="sum")


def alternate(one: Callable[[bool], float], pairs: int) -> list[tuple[float, float]]:
    """Times (measured, bare) of neighbors, whose order alternates."""
    times = []
    for pair in range(pairs):
        taken = {measured: one(measured) for measured in ((True, False) if pair % 2 else (False, True))}
        times.append((taken[True], taken[False]))
    return times


def row(name: str, times: list[tuple[float, float]], updates: int = 1) -> Row:
    measured, bare = zip(*times, strict=True)
    bare_ms, measured_ms = (1e3 * statistics.median(each) / updates for each in (bare, measured))
    return Row(name, bare_ms, measured_ms, *compare(measured, bare))


def measure(job: Job) -> list[Row]:
    run = Run(job, lambda model, groups: NoiseMeter(groups))
    alternate(run.update, 3)  # to warm up

    def block(measured: bool) -> float:
        return sum(run.update(measured and not index) for index in range(10))

    rows = [
        row("micro-batches, every update", alternate(run.update, job.pairs)),
        row("micro-batches, every 10th update", alternate(block, job.blocks), 10),
    ]
    alone = Run(Job(**{**asdict(job), "micro_batches": 1}), lambda model, groups: NormLayerMeter(model))
    alternate(alone.update, 3)
    return [*rows, row("norm layers, every update", alternate(alone.update, job.pairs))]


def report(rows: list[Row], job: Job) -> None:
    size = f"batch {job.batch}, context {job.context}, {job.micro_batches} micro-batches (norm layers: 1)"
    print(f"default decoder, {size}; one thread, {job.pairs} pairs of updates, {job.blocks} pairs of 10\n")
    print(f"{'':34}{'bare, ms':>10}{'measured':>10}{'ratio':>9}   95 % interval")
    for each in rows:
        print(
            f"{each.name:34}{each.bare_ms:10.1f}{each.measured_ms:10.1f}{each.ratio:9.4f}   "
            f"{each.low:.4f} to {each.high:.4f}"
        )
    share, low, high = ((bound - 1) / 10 for bound in (rows[0].ratio, rows[0].low, rows[0].high))
    print(f"\nevery 10th update, a tenth of the first row: {share:+.2%} ({low:+.2%} to {high:+.2%}); goal: under 2 %")
    if job.json:
        Path(job.json).write_text(json.dumps({"job": asdict(job), "rows": [asdict(each) for each in rows]}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16, help="samples of an update")
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=36)
    parser.add_argument("--blocks", type=int, default=5, help="pairs of blocks of ten updates")
    parser.add_argument("--json", help="write the result there")
    job = Job(**vars(parser.parse_args()))
    torch.set_num_threads(1)
    report(measure(job), job)


if __name__ == "__main__":
    main()
