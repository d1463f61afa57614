"""What the training benchmark compares, by name, and one run of it on one rank.

`ddp` is torch's DDP, `ddp/fp16` and `ddp/power_sgd` with torch's hooks (the latter in one bucket), `floor` the same
loop without communication, `gradwire` ours with the hosts' ranks and the hosts as axes, `gradwire/CODEC` with a codec
between hosts.
"""

import os
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gradwire.comm import AllReduce, Reducer, Topology, attach
from gradwire.trainer.data.python_source import PythonSource
from gradwire.trainer.models import Decoder

ONE_BUCKET = 4096  # MiB
RANK = 4  # of PowerSGD
FIRST_UPDATES = 10  # that torch's PowerSGD leaves uncompressed
CLIP = 1.0


@dataclass(frozen=True)
class Job:
    """One run: the same data order and initial weights for every contender of a seed."""

    contender: str
    seed: int
    updates: int
    every: int = 10  # updates between two evaluations; 0: never
    hosts: int = 2
    ranks_per_host: int = 2
    width: int = 384
    layers: int = 6
    context: int = 64
    samples: int = 1  # of a rank and update
    lr: float = 1e-3
    warmup: int = 10
    validation: int = 64  # windows

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host

    def model(self) -> Decoder:
        """With its initial weights."""
        torch.manual_seed(self.seed)
        heads = self.width // 32
        return Decoder(context=self.context, width=self.width, layers=self.layers, heads=heads, kv_heads=heads)

    def data(self) -> PythonSource:
        return PythonSource(self.context)

    def topology(self) -> Topology:
        return Topology(local=self.ranks_per_host, node=self.hosts)


@dataclass
class Run:
    """One rank's.

    Attributes:
        seconds: Of each update.
        losses: On the validation windows, by the number of updates before.
        processor: Seconds of processor time of an update.
        sent: Bytes that this rank's host sent in an update, by its network interface.
        traffic: What an update cost this rank by our own meters, by axis.
    """

    seconds: list[float] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    processor: float = 0.0
    sent: float = 0.0
    traffic: dict[str, dict[str, float]] = field(default_factory=dict)


class Contender(ABC):
    """A way to reduce a model's gradients over the ranks."""

    @abstractmethod
    def wrap(self, model: nn.Module, job: Job) -> nn.Module:
        """What to call in place of the model; a collective."""

    def traffic(self) -> Mapping[str, Any]:
        return {}

    def leave(self) -> None:  # noqa: B027 - most have nothing to undo
        """Undo what `wrap` did."""


class Floor(Contender):
    def wrap(self, model: nn.Module, job: Job) -> nn.Module:
        return model


@dataclass
class Ddp(Contender):
    """Torch's own, with a hook or none."""

    hook: Callable[[DistributedDataParallel], None] | None = None
    bucket_mb: int = 25

    def wrap(self, model: nn.Module, job: Job) -> nn.Module:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=self.bucket_mb)
        if self.hook is not None:
            self.hook(wrapped)
        return wrapped


def fp16(wrapped: DistributedDataParallel) -> None:
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)


def power_sgd(wrapped: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=RANK, start_powerSGD_iter=FIRST_UPDATES, min_compression_rate=2
    )
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


class Ours(Contender):
    def __init__(self, codec: str | None) -> None:
        self._codec = codec
        self._reducer: Reducer | None = None

    def wrap(self, model: nn.Module, job: Job) -> nn.Module:
        codecs = {} if self._codec is None else {"node": self._codec}
        algorithm: Any = "two_shot" if self._codec is None else "native"
        self._reducer = attach(model, AllReduce(job.topology(), algorithm, codecs))
        return model

    @property
    def reducer(self) -> Reducer:
        assert self._reducer is not None
        return self._reducer

    def traffic(self) -> Mapping[str, Any]:
        return self.reducer.take_traffic()

    def leave(self) -> None:
        self.reducer.detach()


def contender(name: str) -> Contender:
    """What a name stands for.

    Raises:
        ValueError: Nothing.
    """
    peers: dict[str, Callable[[], Contender]] = {
        "floor": Floor,
        "ddp": Ddp,
        "ddp/fp16": partial(Ddp, fp16),
        "ddp/power_sgd": partial(Ddp, power_sgd, ONE_BUCKET),
    }
    if name in peers:
        return peers[name]()
    kind, _, codec = name.partition("/")
    if kind != "gradwire":
        raise ValueError(f"{name!r} is no contender; expected {', '.join(peers)}, gradwire or gradwire/CODEC")
    return Ours(codec or None)


class Batches:
    """The same batches for every contender of a seed."""

    def __init__(self, job: Job, rank: int, updates: int) -> None:
        self._windows = job.data().train
        generator = torch.Generator().manual_seed(job.seed)
        order = torch.randint(len(self._windows), (updates, job.ranks, job.samples), generator=generator)
        self._order = order[:, rank].numpy()

    def __getitem__(self, update: int) -> dict[str, Tensor]:
        return self._windows.gather(self._order[update])


def mean_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())


def train(rank: int, job: Job) -> Run:
    """One run on one rank. A collective."""
    warm_up(rank, job)
    model, each, run = job.model(), contender(job.contender), Run()
    wrapped = each.wrap(model, job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    batches = Batches(job, rank, job.updates)
    for update in range(job.updates):
        if job.every and update % job.every == 0:
            run.losses.append((update, validation_loss(model, rank, job)))
        _count(run, 1 / job.updates, partial(_update, wrapped, model, optimizer, batches, update, job))
    if job.every:
        run.losses.append((job.updates, validation_loss(model, rank, job)))
    for axis, traffic in each.traffic().items():
        run.traffic[axis] = {
            name: value if name == "error" else (value or 0.0) / job.updates for name, value in asdict(traffic).items()
        }
    dist.barrier()
    each.leave()
    return run


def _update(
    wrapped: nn.Module, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, update: int, job: Job
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = job.lr * min(1.0, (update + 1) / job.warmup)
    mean_loss(wrapped, batches[update]).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()


def _count(run: Run, share: float, action: Callable[[], None]) -> None:
    """Add to a run what an action takes."""
    sent, processor, start = sent_bytes(), processor_seconds(), time.perf_counter()
    action()
    run.seconds.append(time.perf_counter() - start)
    run.processor += share * (processor_seconds() - processor)
    run.sent += share * (sent_bytes() - sent)


def warm_up(rank: int, job: Job) -> None:
    """Compile what the contender compiles, on another model."""
    model, each = job.model(), contender(job.contender)
    wrapped = each.wrap(model, job)
    mean_loss(wrapped, Batches(job, rank, 1)[0]).backward()  # type: ignore[no-untyped-call]
    dist.barrier()
    each.leave()


@torch.no_grad()
def validation_loss(model: nn.Module, rank: int, job: Job) -> float:
    """The mean over the same windows for all; every rank takes its share of them. A collective."""
    windows = job.data().validation
    assert windows is not None
    chosen = torch.linspace(0, len(windows) - 1, job.validation).long()[rank :: job.ranks]
    losses = [mean_loss(model, windows.gather(part.numpy())) * len(part) for part in chosen.split(16)]  # type: ignore[no-untyped-call]
    total = torch.stack(losses).sum()
    dist.all_reduce(total)
    return total.item() / job.validation


def sent_bytes() -> int:
    """What this rank's host has sent."""
    device = os.environ["GLOO_SOCKET_IFNAME"]
    return int(Path(f"/sys/class/net/{device}/statistics/tx_bytes").read_text())


def processor_seconds() -> float:
    """Of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
