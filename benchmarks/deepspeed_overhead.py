"""What the trainer costs under DeepSpeed: updates against a bare DeepSpeed script, in alternated pairs.

    python -m benchmarks.deepspeed_overhead [--stages 1,2,3] [--size medium] [--ranks 2] [--rounds 12] [--json FILE]

Both train the decoder of `benchmarks.trainer` on the same tokens under the same configuration of DeepSpeed: AdamW,
clipping, a learning-rate schedule, a loss summed over the ranks every ten updates. Each round trains a block of either,
in an order that is reversed from round to round; a block's time is that of its updates after the first three. The ratio
is of paired rounds, with a 95 % bootstrap interval: below 1 the trainer is faster than the script.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.strategy_runs import spawned
from benchmarks.trainer import SIZES, WARMUP, Job, Stopwatch, mean_loss
from gradwire.comm import AllReduce
from gradwire.comm.benchmark.paired import compare
from gradwire.schedulers import Plan
from gradwire.schedulers.lr import Constant, Warmup
from gradwire.trainer import Callback, Settings, Trainer
from gradwire.trainer.strategies import DeepSpeed
from gradwire.trainer.strategies.deepspeed_settings import Decided

CLIP = 1.0


def settings(stage: int) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}


def bare(job: Job, watch: Stopwatch, stage: int) -> None:
    """The loop that DeepSpeed's own tutorial has."""
    import deepspeed

    model = job.model()
    config = {
        **settings(stage),
        "train_micro_batch_size_per_gpu": job.batch,
        "gradient_clipping": CLIP,
        "zero_allow_untested_optimizer": True,
    }
    optimizer = job.optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, job.factor)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=schedule, config=config, dist_init_required=False
    )
    for update, batch in enumerate(job.loader(distributed=True)):
        loss = mean_loss(engine, batch)
        engine.backward(loss)
        engine.step()
        if update % 10 == 9:
            logged = loss.detach().clone()
            dist.all_reduce(logged)
            logged.item()
        watch.tick()
        if update + 1 == job.total:
            break


class _Tick(Callback):
    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def on_update(self, trainer: Trainer, outcome: Any) -> None:
        self._watch.tick()


def ours(job: Job, watch: Stopwatch, stage: int) -> None:
    """The same under the trainer."""
    batch = job.batch * dist.get_world_size()
    plan = Plan(
        lr=1e-3 * Warmup(f"{WARMUP} updates").then(Constant()),
        batch=batch,
        run_length=f"{job.total} updates",
        context=job.context,
    )
    decided = Decided(batch=batch, micro=job.batch, clip=CLIP)
    strategy = DeepSpeed(AllReduce(), torch.device("cpu"), config=settings(stage), decided=decided)
    trainer = Trainer(
        job.model(),
        job.dataset(),
        job.optimizer,
        plan,
        strategy=strategy,
        settings=Settings(clip=CLIP, micro=job.batch),
        callbacks={"tick": _Tick(watch)},
    )
    trainer.fit()


RUNNERS: dict[str, Callable[[Job, Stopwatch, int], None]] = {"script": bare, "trainer": ours}


def measure(rank: int, output: str, size: str, stages: list[int], rounds: int) -> None:
    """Alternate both; rank 0 writes seconds an update by stage. On the ranks."""
    os.environ["LOCAL_RANK"] = "0"
    job = Job(size)
    seconds: dict[int, dict[str, list[float]]] = {stage: {name: [] for name in RUNNERS} for stage in stages}
    for stage in stages:
        for turn in range(-1, rounds):  # the first to warm up
            for name in RUNNERS if turn % 2 else reversed(RUNNERS):
                watch = Stopwatch(job.updates)
                dist.barrier()
                RUNNERS[name](job, watch, stage)
                if turn >= 0:
                    seconds[stage][name].append(watch.seconds / job.updates)
    if rank == 0:
        Path(output).write_text(json.dumps(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="1,2,3")
    parser.add_argument("--size", choices=SIZES, default="medium")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    stages = [int(each) for each in options.stages.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "seconds.json"
        spawned(options.ranks, measure, str(output), options.size, stages, options.rounds)
        seconds = json.loads(output.read_text())
    print(f"{options.ranks} ranks, gloo, one thread each; {options.size}, {options.rounds} alternated pairs\n")
    print("| stage | script, ms | trainer, ms | trainer / script | 95 % interval |\n|---|---|---|---|---|")
    for stage, times in seconds.items():
        ratio, low, high = compare(times["trainer"], times["script"])
        best = " | ".join(f"{1000 * sorted(times[name])[len(times[name]) // 2]:.1f}" for name in RUNNERS)
        print(f"| {stage} | {best} | {ratio:.3f} | {low:.3f} to {high:.3f} |")
    if options.json:
        options.json.write_text(json.dumps(seconds, indent=1))


if __name__ == "__main__":
    from benchmarks.deepspeed_overhead import main  # what ranks call must not lie in __main__

    main()
