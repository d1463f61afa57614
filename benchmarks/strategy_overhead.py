"""What the trainer costs under FSDP2 and DeepSpeed: updates against a bare script of each, in alternated pairs.

    python -m benchmarks.strategy_overhead [--strategies fsdp,deepspeed_1,deepspeed_2,deepspeed_3]
        [--size medium] [--ranks 2] [--rounds 24] [--block 4] [--json FILE]

Both train the decoder of `benchmarks.trainer` on the same tokens with the same settings of the engine: AdamW,
clipping, a learning-rate schedule, a loss summed over the ranks every ten updates. The script is the one of the
engine's own tutorial. Both are alive in the same processes and train in turns, a block of updates each; the first two
rounds are not counted. The ratio is of paired blocks, with a 95 % bootstrap interval: below 1 the trainer is faster.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.strategy_runs import spawned
from benchmarks.trainer_contestants import SIZES, WARMUP, Job, mean_loss
from gradwire.comm import AllReduce
from gradwire.comm.benchmark.paired import compare
from gradwire.schedulers import Plan
from gradwire.schedulers.lr import Constant, Warmup
from gradwire.trainer import Callback, Settings, Trainer
from gradwire.trainer.strategies import DeepSpeed, FullySharded, Strategy

CLIP = 1.0
UNCOUNTED = 2  # rounds
CPU = torch.device("cpu")
Engine = tuple[Callable[[Any], Any], Callable[[Any], None]]
"""What is called with a batch's inputs, and what applies a loss."""


def settings(stage: int) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}


def bare_deepspeed(job: Job, stage: int) -> Engine:
    """As DeepSpeed's own tutorial has it."""
    import deepspeed

    config = {
        **settings(stage),
        "train_micro_batch_size_per_gpu": job.batch,
        "gradient_clipping": CLIP,
        "zero_allow_untested_optimizer": True,
    }
    model = job.model()
    optimizer = job.optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, job.factor)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=schedule, config=config, dist_init_required=False
    )

    def apply(loss: Any) -> None:
        engine.backward(loss)
        engine.step()

    return engine, apply


def bare_fsdp(job: Job) -> Engine:
    """As torch's own tutorial has it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = job.model(), init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh)
    optimizer = job.optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, job.factor)

    def apply(loss: Any) -> None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return model, apply


def script(job: Job, engine: Engine) -> Iterator[None]:
    """The loop around either, one update at a time."""
    model, apply = engine
    for update, batch in enumerate(job.loader(distributed=True)):
        loss = mean_loss(model, batch)
        apply(loss)
        if update % 10 == 9:
            logged = loss.detach().clone()
            dist.all_reduce(logged)
            logged.item()
        yield


class Turns(Callback):
    """Gives way to the script after each block of the trainer's updates, and times both.

    Args:
        script: Yields after each update.
        block: Updates of a turn.
    """

    def __init__(self, script: Iterator[None], block: int) -> None:
        self.trainer: list[float] = []
        self.script: list[float] = []
        self._updates = script
        self._block = block
        self._done = 0
        self._began = time.perf_counter()

    def on_update(self, trainer: Trainer, outcome: Any) -> None:
        self._done += 1
        if self._done % self._block:
            return
        ours = time.perf_counter()
        dist.barrier()
        theirs = time.perf_counter()
        for _ in range(self._block):
            next(self._updates)
        ended = time.perf_counter()
        self.trainer.append((ours - self._began) / self._block)
        self.script.append((ended - theirs) / self._block)
        dist.barrier()
        self._began = time.perf_counter()


def strategies() -> dict[str, tuple[Callable[[Job], Engine], Callable[[], Strategy]]]:
    """By name, the bare engine and ours."""
    found: dict[str, tuple[Callable[[Job], Engine], Callable[[], Strategy]]] = {
        f"deepspeed_{stage}": (
            partial(bare_deepspeed, stage=stage),
            partial(DeepSpeed, AllReduce(), CPU, config=settings(stage)),
        )
        for stage in (1, 2, 3)
    }
    return {"fsdp": (bare_fsdp, partial(FullySharded, AllReduce(), CPU)), **found}


def measure(rank: int, output: str, name: str, size: str, rounds: int, block: int) -> None:
    """Train both in turns; rank 0 writes seconds an update, by round. On the ranks."""
    os.environ.update(
        DS_ACCELERATOR="cpu", LOCAL_RANK=str(rank), LOCAL_SIZE=str(dist.get_world_size())
    )  # its launcher's
    job, (engine, strategy) = Job(size), strategies()[name]
    turns = Turns(script(job, engine(job)), block)
    plan = Plan(
        lr=1e-3 * Warmup(f"{WARMUP} updates").then(Constant()),
        batch=job.batch * dist.get_world_size(),
        run_length=f"{(rounds + UNCOUNTED) * block} updates",
        context=job.context,
    )
    trainer = Trainer(
        job.model(),
        job.dataset(),
        job.optimizer,
        plan,
        strategy=strategy(),
        settings=Settings(clip=CLIP, micro=job.batch),
        callbacks={"turns": turns},
    )
    trainer.fit()
    if rank == 0:
        found = {"trainer": turns.trainer[UNCOUNTED:], "script": turns.script[UNCOUNTED:]}
        Path(output).write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", default=",".join(strategies()))
    parser.add_argument("--size", choices=SIZES, default="medium")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(
        f"{options.ranks} ranks, gloo, one thread each; {options.size}, {options.rounds} alternated pairs of blocks\n"
    )
    print("| strategy | script, ms | trainer, ms | trainer / script | 95 % interval |\n|---|---|---|---|---|")
    results = {}
    for name in options.strategies.split(","):
        results[name] = measured(name, options.size, options.ranks, options.rounds, options.block)
        print(row(name, results[name]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def measured(name: str, size: str, ranks: int, rounds: int, block: int) -> dict[str, list[float]]:
    """Seconds an update of both, by round, in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "seconds.json"
        spawned(ranks, measure, str(output), name, size, rounds, block)
        found: dict[str, list[float]] = json.loads(output.read_text())
    return found


def row(name: str, seconds: dict[str, list[float]]) -> str:
    ratio, low, high = compare(seconds["trainer"], seconds["script"])
    script, ours = (f"{1000 * statistics.median(seconds[each]):.1f}" for each in ("script", "trainer"))
    return f"| {name} | {script} | {ours} | {ratio:.3f} | {low:.3f} to {high:.3f} |"


if __name__ == "__main__":
    from benchmarks.strategy_overhead import main  # what ranks call must not lie in __main__

    main()
