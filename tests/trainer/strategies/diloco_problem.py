"""A small problem for tests of DiLoCo: a trainer of it, and what the paper's loop makes of it, written plainly."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.strategy_runs import Losses
from gradwire.checkpoint import Checkpointer
from gradwire.comm import AllReduce, Topology
from gradwire.schedulers import Clock, Plan
from gradwire.trainer import Settings, Trainer
from gradwire.trainer.data import Feed, SampleStream
from gradwire.trainer.strategies import DataParallel, DiLoCo

CPU = torch.device("cpu")
BATCH = 8


class Points(torch.utils.data.Dataset[dict[str, Tensor]]):
    """A curved problem with noise, in float64."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.randn(6, dtype=torch.float64)
        return {"x": x, "y": x.sin().sum().reshape(1) + 0.1 * torch.randn(1, dtype=torch.float64)}


class Net(nn.Module):
    """Blocks between two layers, and a buffer that follows the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.last = nn.Linear(16, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.detach().abs().mean()
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        found: Tensor = self.last(x)
        return found


FRAGMENTS = {  # the parameters of each, by the number of fragments
    1: [["first", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "last"]],
    2: [["first", "blocks.0", "blocks.2"], ["blocks.1", "blocks.3", "last"]],
}


class Loss:
    """Squares; a sample counts for as many targets as it has; NaN where it is told to be."""

    poisoned = False

    def count(self, batch: Mapping[str, Tensor]) -> int:
        return len(batch["y"])

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        kind = next(model.parameters()).dtype
        loss: Tensor = (model(batch["x"].to(kind)) - batch["y"].to(kind)).square().sum()
        return loss * float("nan") if self.poisoned else loss

    def measures(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        return {"loss": self(model, batch)}


@dataclass(frozen=True)
class Way:
    """How a run is trained."""

    every: int = 4
    fragments: int = 1
    overlap: int = 0
    mix: float = 0.5
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    updates: int = 20
    optimizer: str = "AdamW"
    codec: str = "none"
    dtype: torch.dtype = torch.float64
    clip: float | None = None


def model_of(way: Way) -> Net:
    torch.manual_seed(0)
    return Net().to(way.dtype)


def optimizer_of(way: Way, model: nn.Module) -> torch.optim.Optimizer:
    if way.optimizer == "AdamW":
        return torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    return torch.optim.SGD(model.parameters(), momentum=0.5)


def plan_of(way: Way) -> Plan:
    return Plan(lr=0.02, batch=BATCH, run_length=f"{way.updates} updates")


def all_reduce_of(way: Way, topology: Topology) -> AllReduce:
    last = list(topology.axes)[-1]
    return AllReduce(topology, "two_shot", {} if way.codec == "none" else {last: way.codec})


def trainer_of(way: Way, topology: Topology, store: Checkpointer | None = None, **options: Any) -> Trainer:
    strategy = DiLoCo(
        all_reduce_of(way, topology),
        CPU,
        every=way.every,
        fragments=way.fragments,
        overlap=way.overlap,
        mix=way.mix,
        outer_lr=way.outer_lr,
        outer_momentum=way.outer_momentum,
    )
    return _trainer(way, strategy, store, options)


def data_parallel(way: Way, topology: Topology, store: Checkpointer | None = None, **options: Any) -> Trainer:
    return _trainer(way, DataParallel(all_reduce_of(way, topology), CPU), store, options)


def _trainer(way: Way, strategy: Any, store: Checkpointer | None, options: dict[str, Any]) -> Trainer:
    model = model_of(way)
    settings = Settings(log_every=1, clip=way.clip, **options.pop("settings", {}))
    return Trainer(
        model,
        Points(),
        optimizer_of(way, model),
        plan_of(way),
        loss=Loss(),
        strategy=strategy,
        settings=settings,
        checkpointer=store,
        callbacks={"records": Losses(), **options.pop("callbacks", {})},
        **options,
    )


def records_of(trainer: Trainer) -> dict[int, Mapping[str, Any]]:
    records = trainer.callbacks["records"]
    assert isinstance(records, Losses)
    return records.of


def check_replicas(trainer: Trainer) -> None:
    """As the trainer does from time to time; running statistics are each rank's own until then."""
    trainer.strategy.synchronize_buffers(trainer.model)
    trainer.strategy.check_replicas(trainer.model)


def flat(parameters: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def outer_of(trainer: Trainer) -> Tensor:
    """The outer parameters."""
    state = trainer.state().shared["model"]
    return flat(state[name] for name, _ in trainer.model.named_parameters())


def reference(way: Way, hosts: int, per_host: int) -> tuple[Tensor, list[Tensor]]:
    """The outer parameters and each host's own after the last update, before what concludes the run.

    Batches are those of the ranks of a run; each host takes the mean gradient over the samples of its ranks.
    """
    stream, plan, world = SampleStream(Points(), 0), plan_of(way), hosts * per_host
    feeds = [iter(Feed(stream, plan, Clock(), rank=rank, world_size=world, micro=BATCH)) for rank in range(world)]
    models = [model_of(way) for _ in range(hosts)]
    optimizers = [optimizer_of(way, model) for model in models]
    outer = {name: parameter.detach().clone() for name, parameter in models[0].named_parameters()}
    velocity = {name: torch.zeros_like(parameter) for name, parameter in outer.items()}
    under_way: dict[str, Tensor] = {}
    lands = -1
    for update in range(1, way.updates + 1):
        batches = [next(feed) for feed in feeds]
        for host, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            mine = [
                micro.batch
                for batch in batches[host * per_host : (host + 1) * per_host]
                for micro in batch.micro_batches
            ]
            x, y = (torch.cat([batch[key] for batch in mine]).to(way.dtype) for key in ("x", "y"))
            optimizer.param_groups[0]["lr"] = batches[0].step.lr
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        for step in ("land", "start", "land"):
            if step == "start" and update % (way.every // way.fragments) == 0:
                turn = update // (way.every // way.fragments) - 1
                layers = FRAGMENTS[way.fragments][turn % way.fragments]
                names = [name for name in outer if name.rpartition(".")[0] in layers]
                own = [dict(model.named_parameters()) for model in models]
                under_way = {
                    name: sum((outer[name] - each[name].detach() for each in own), torch.zeros(())) / hosts
                    for name in names
                }
                lands = update + way.overlap
            if step == "land" and under_way and lands == update:
                for name, gradient in under_way.items():
                    velocity[name] = way.outer_momentum * velocity[name] + gradient
                    outer[name] = outer[name] - way.outer_lr * (gradient + way.outer_momentum * velocity[name])
                    stays = way.mix if way.overlap else 0.0
                    for model in models:
                        parameter = model.get_parameter(name)
                        parameter.data = stays * parameter.data + (1 - stays) * outer[name]
                under_way = {}
    return flat(outer.values()), [flat(model.parameters()) for model in models]
