"""Short runs of one decoder under any strategy, for what compares strategies with each other."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.processes import FORKED
from gradwire.checkpoint import Checkpointer
from gradwire.comm import AllReduce, Topology
from gradwire.schedulers import Duration, Plan, Schedule
from gradwire.schedulers.batch import LinearWarmup
from gradwire.trainer import Settings, Trainer
from gradwire.trainer.adapters import LoRA
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.data import Pair
from gradwire.trainer.lamb import LAMB
from gradwire.trainer.lars import LARS
from gradwire.trainer.launch.ports import free_port
from gradwire.trainer.losses import NextToken
from gradwire.trainer.models import Decoder
from gradwire.trainer.recovery import put_back, restore
from gradwire.trainer.strategies import DataParallel, DeepSpeed, DiLoCo, FullySharded, Strategy

CONTEXT = 16
STRATEGIES = ("ddp", "fsdp", "hsdp", "tensor_parallel")
ZERO = ("deepspeed_1", "deepspeed_2", "deepspeed_3")  # by stage
APART = "diloco"  # two hosts that train by themselves, whose losses are therefore their own
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Way:
    """How a run is spread.

    Args:
        strategy: By its name in the configuration; that of deepspeed with its stage, `_offload` and `_bf16` (weights).
        ranks: How many.
    """

    strategy: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.strategy} × {self.ranks}"


class Sequences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Counting up in steps, with a little noise: something that a decoder learns quickly.

    Args:
        size: How many.
    """

    def __init__(self, size: int = 4096) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start, step = index % 61, 1 + index % 5
        tokens = (start + step * torch.arange(CONTEXT + 1) + (torch.rand(CONTEXT + 1) < 0.02)) % 61
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}


class Losses(Callback):
    """What was logged, by update."""

    def __init__(self) -> None:
        self.of: dict[int, Mapping[str, Any]] = {}

    def on_record(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        self.of[record["update"]] = record


def decoder() -> nn.Module:
    """The model of all runs, with the same initial weights."""
    torch.manual_seed(0)
    return Decoder(vocabulary=61, context=CONTEXT, width=32, layers=2, heads=4, kv_heads=2, feed_forward=64)


def strategy_of(way: Way) -> Strategy:
    """The strategy on these ranks, two of which make a host or split layers where it has such; a collective."""
    if way.strategy.startswith("deepspeed"):
        return _deepspeed(way.strategy)
    hosts = 2 if way.strategy in ("hsdp", APART) and way.ranks > 1 else 1
    all_reduce = AllReduce(Topology(local=way.ranks // hosts, node=hosts))
    if way.strategy == APART:
        return DiLoCo(all_reduce, CPU, every=4)
    if way.strategy == "ddp":
        return DataParallel(AllReduce(), CPU)
    tensor = 2 if way.strategy == "tensor_parallel" and way.ranks > 1 else 1
    return FullySharded(all_reduce, CPU, replicas=way.strategy == "hsdp", tensor=tensor)


def _deepspeed(name: str) -> Strategy:
    """ZeRO of a stage; without the threshold, small models would keep all weights everywhere even at stage 3."""
    _, stage, *options = name.split("_")
    zero: dict[str, Any] = {"stage": int(stage), "stage3_param_persistence_threshold": 0}
    if "offload" in options:
        zero["offload_optimizer"] = {"device": "cpu"}
    return DeepSpeed(AllReduce(), CPU, config={"zero_optimization": zero, "bf16": {"enabled": "bf16" in options}})


@dataclass(frozen=True)
class Feature:
    """What a run does beside the plain thing.

    Args:
        settings: Of the trainer.
        schedule: Of the batch size.
        poisoned: Update whose loss is NaN on the first rank.
        optimizer: What makes the optimizer.
        rank: Of a LoRA that is trained in the model's stead.
        overrides: How a configuration asks for it.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | None = None
    poisoned: int | None = None
    optimizer: Callable[..., Optimizer] = torch.optim.AdamW
    rank: int | None = None
    overrides: tuple[str, ...] = ()


FEATURES: Mapping[str, Feature] = MappingProxyType(
    {
        "plain": Feature(),
        "accumulation": Feature({"micro": 1}, overrides=("batch.micro=1",)),
        "batch warm-up": Feature(schedule=LinearWarmup("10 updates"), overrides=("batch=linear_warmup",)),
        "noise scale": Feature(
            {"noise_scale_every": Duration(2, "updates"), "micro": 1}, overrides=("noise_scale.every=2 updates",)
        ),
        "clipping": Feature({"clip": 0.05}, overrides=("clip=0.05",)),
        "moving average": Feature({"ema": 0.8, "evaluate_every": Duration(5, "updates")}, overrides=("ema=0.8",)),
        "non-finite skip": Feature({"non_finite": "skip"}, poisoned=7, overrides=("non_finite=skip",)),
        "LARS": Feature(optimizer=partial(LARS, trust_coefficient=0.02), overrides=("optimizer=lars",)),
        "LAMB": Feature(optimizer=LAMB, overrides=("optimizer=lamb",)),
        "bf16": Feature({"precision": "bf16"}, overrides=("precision=bf16",)),
        "fp16": Feature({"precision": "fp16"}, overrides=("precision=fp16",)),
        "LoRA": Feature(rank=4, overrides=("adapter=lora",)),
    }
)
SEVERAL = "several"  # of those at once
_SEVERAL = Feature(
    {
        "micro": 1,
        "noise_scale_every": Duration(2, "updates"),
        "clip": 0.05,
        "ema": 0.8,
        "evaluate_every": Duration(5, "updates"),
        "non_finite": "skip",
    },
    schedule=LinearWarmup("10 updates"),
    poisoned=7,
)


def refused(strategy: str, feature: str) -> bool:
    """Whether a run with that feature is refused before it starts."""
    whole_parameters = strategy in ZERO and feature in ("LARS", "LAMB")
    of_each_host = strategy == APART and feature in ("moving average", "fp16")
    return whole_parameters or of_each_host or (strategy, feature) == ("tensor_parallel", "LoRA")


def unmeasured(strategy: str, feature: str) -> bool:
    """Whether training goes on but what the feature measures is not."""
    return feature == "noise scale" and strategy in ("tensor_parallel", APART)


class Poisonable(NextToken):
    """Next-token loss that is NaN in one update on the first rank."""

    def __init__(self, strategy: Strategy, update: int | None) -> None:
        super().__init__()
        self._first, self._poisoned = strategy.rank == 0, update

    def __call__(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        loss = super().__call__(model, batch)
        return loss * float("nan") if self._first and self.update() == self._poisoned else loss

    def update(self) -> int:
        """The update under way; the trainer's clock, once there is one."""
        return -1


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.requires_grad]


def trainer_of(
    way: Way, store: Checkpointer | None = None, updates: int = 50, feature: str = "plain", **settings: Any
) -> tuple[Trainer, Losses]:
    """A trainer, and what it will have logged. A collective."""
    losses, strategy = Losses(), strategy_of(way)
    chosen = _SEVERAL if feature == SEVERAL else FEATURES[feature]
    loss, model = Poisonable(strategy, chosen.poisoned), decoder()
    if chosen.rank is not None:
        LoRA(chosen.rank).apply(model)
    trainer = Trainer(
        model,
        Pair(Sequences(), Sequences(64)),
        lambda model: chosen.optimizer(trained_parameters(model), lr=1.0),
        Plan(
            lr=3e-3,
            batch=8 if chosen.schedule is None else 8 * chosen.schedule,
            run_length=f"{updates} updates",
            context=CONTEXT,
            granule=4 if way.strategy == APART else 1,  # so that hosts have the same shares on any number of ranks
        ),
        loss=loss,
        strategy=strategy,
        settings=Settings(**{"log_every": 1, "clip": 1.0, "micro": 2, **chosen.settings, **settings}),
        checkpointer=store,
        callbacks={"losses": losses},
    )
    loss.update = lambda: trainer.clock.updates  # type: ignore[method-assign]
    return trainer, losses


def train(
    way: Way,
    url: str | None,
    *,
    save_every: int = 10,
    resume: int | None = None,
    save: bool = True,
    **options: Any,
) -> dict[int, Mapping[str, Any]]:
    """Train on these ranks, from the start or a snapshot; what was logged of every update. A collective.

    Args:
        way: How.
        url: The store; None for a run that has none.
        save_every: Updates between snapshots.
        resume: The update to go on from.
        save: Whether the store is written, not only read.
        **options: Of `trainer_of`.
    """
    store = None if url is None else Checkpointer(url, keep_last=99, group=dist.group.WORLD)
    written = store if save else None
    trainer, losses = trainer_of(way, written, save_every=Duration(save_every, "updates"), **options)
    if store is not None:
        restore(lambda restored: put_back(trainer, restored), store, None if resume is None else str(resume))
    trainer.fit()
    return losses.of


def spawned(ranks: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call `function(rank, *arguments)` in new processes of one thread each, joined by gloo."""
    told = (ranks, free_port(), function, arguments)
    mp.start_processes(_enter, told, ranks, start_method=FORKED.get_start_method())  # type: ignore[no-untyped-call]


def _enter(rank: int, ranks: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    function(rank, *arguments)
    dist.barrier()
    os._exit(0)  # at once: on its way down, an interpreter can abort over gloo's threads
