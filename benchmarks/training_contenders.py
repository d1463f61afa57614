"""What the training benchmark compares, by name, and one run of it on one rank.

`ddp` is torch's DDP, `ddp/fp16` and `ddp/power_sgd` with torch's hooks (the latter in one bucket), `floor` the same
loop without communication, `gradwire` ours with the hosts' ranks and the hosts as axes, `gradwire/CODEC` with a codec
between hosts.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_model
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.training_job import Batches, Job, Run, mean_loss, processor_seconds, sent_bytes, validation_loss
from gradwire.comm import AllReduce, Reducer, attach

ONE_BUCKET = 4096  # MiB
RANK = 4  # of PowerSGD
UNCOMPRESSED = 0.1  # share of the updates that torch's PowerSGD begins with, as its documentation advises
CLIP = 1.0


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

    hook: Callable[[DistributedDataParallel, Job], None] | None = None
    bucket_mb: int = 25

    def wrap(self, model: nn.Module, job: Job) -> nn.Module:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=self.bucket_mb)
        if self.hook is not None:
            self.hook(wrapped, job)
        return wrapped


def fp16(wrapped: DistributedDataParallel, job: Job) -> None:
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)


def power_sgd(wrapped: DistributedDataParallel, job: Job) -> None:
    first = max(2, round(UNCOMPRESSED * job.updates))
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=RANK, start_powerSGD_iter=first, min_compression_rate=2
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


def train(rank: int, job: Job, keep: Path | None = None) -> Run:
    """One run on one rank; the first one keeps the weights where a file is given. A collective."""
    warm_up(rank, job)
    model, each, run = job.model(), contender(job.contender), Run()
    wrapped = each.wrap(model, job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    batches = Batches(job, rank, job.updates)
    for update in range(job.updates):
        if job.every and update % job.every == 0:
            run.losses.append((update, validation_loss(model, rank, job)))
        count(run, 1 / job.updates, partial(_update, wrapped, model, optimizer, batches, update, job))
    if job.every:
        run.losses.append((job.updates, validation_loss(model, rank, job)))
    for axis, traffic in each.traffic().items():
        run.traffic[axis] = {
            name: value if name == "error" else (value or 0.0) / job.updates for name, value in asdict(traffic).items()
        }
    if keep is not None and rank == 0:
        save_model(model, str(keep))
    dist.barrier()
    each.leave()
    return run


def _update(
    wrapped: nn.Module, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, update: int, job: Job
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = job.rate(update)
    mean_loss(wrapped, batches[update]).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()


def count(run: Run, share: float, action: Callable[[], None]) -> None:
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
