"""One run of the training benchmark: what is trained on what, and what is measured of it on a rank."""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.nn import functional

from gradwire.comm import Topology
from gradwire.trainer.data.python_source import PythonSource
from gradwire.trainer.models import Decoder


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
    start: Path | None = None  # a file of weights to begin with, as safetensors keep them; fresh ones where None
    validation: int = 64  # windows

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host

    @property
    def parameters(self) -> int:
        """Numbers that are trained."""
        return sum(parameter.numel() for parameter in self.model().parameters())

    def rate(self, update: int) -> float:
        """The learning rate of an update."""
        return self.lr * min(1.0, (update + 1) / self.warmup)

    def model(self) -> Decoder:
        """With its initial weights."""
        torch.manual_seed(self.seed)
        heads = self.width // 32
        made = Decoder(context=self.context, width=self.width, layers=self.layers, heads=heads, kv_heads=heads)
        if self.start is not None:
            load_model(made, self.start)
        return made

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
