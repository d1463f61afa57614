"""What `gradwire plan --memory` foretells: what each strategy needs of a rank's memory, and which of them fit."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map_only

from gradwire.trainer.assemble import build_model, component, make_optimizer
from gradwire.trainer.blocks import blocks_of
from gradwire.trainer.config.communication import axes_of
from gradwire.trainer.config.shapes import shapes_only
from gradwire.trainer.data import SampleStream, training_set
from gradwire.trainer.errors import PredictionError
from gradwire.trainer.host_memory import available
from gradwire.trainer.launch.hosts import Hosts
from gradwire.trainer.launch.local import count_processes
from gradwire.trainer.losses import loss_for
from gradwire.trainer.memory_of_strategies import TENSOR, Whole, needed, split
from gradwire.trainer.precision import autocast_of
from gradwire.trainer.strategies.tensor_plan import split_parameters

ASSUMED = (
    "activations are what autograd keeps for one pass of {micro} samples; what operators need while they run, the "
    "framework itself (0.3 to 1 GiB on a GPU) and fragmentation come on top. deepspeed: in its own sizes of "
    "buckets, without offload; tensor_parallel: activations as if no rank had split any"
)


@dataclass(frozen=True)
class Need:
    """Bytes of a rank under a strategy.

    Args:
        strategy: As the configuration names it.
        kept: Weights, gradients, optimizer state and average that lie on this rank.
        gathered: What is gathered for a while on top: weights and gradients, of blocks or in buckets.
        activations: Of one pass.
        fits: Whether all of it goes into the memory that a rank has.
    """

    strategy: str
    kept: int
    gathered: int
    activations: int
    fits: bool

    @property
    def together(self) -> int:
        return self.kept + self.gathered + self.activations


@dataclass(frozen=True)
class Memory:
    """The prediction.

    Args:
        rank: Bytes that a rank has: of its GPU, or its part of what is free on this host.
        needs: By strategy.
        assumption: What it leaves out.
    """

    rank: int
    needs: tuple[Need, ...]
    assumption: str

    def to_text(self) -> str:
        """A table in MiB, and what it leaves out."""
        lines = [f"\nmemory of a rank, MiB ({_mib(self.rank)} there are)"]
        lines.append(f"  {'strategy':<16}{'kept':>10}{'gathered':>10}{'activations':>13}{'together':>10}")
        for need in self.needs:
            figures = f"{_mib(need.kept):>10}{_mib(need.gathered):>10}{_mib(need.activations):>13}"
            fits = "fits" if need.fits else "does not fit"
            lines.append(f"  {need.strategy:<16}{figures}{_mib(need.together):>10}  {fits}")
        return "\n".join([*lines, f"  {self.assumption}"]) + "\n"

    def to_record(self) -> dict[str, Any]:
        """For JSON, in bytes."""
        needs = [asdict(need) | {"together": need.together} for need in self.needs]
        return {"rank": self.rank, "needs": needs, "assumption": self.assumption}


def foretell(config: Mapping[str, Any], largest_batch: int, allow: tuple[str, ...] = ()) -> Memory:
    """What a configured run needs on each of its ranks, under every strategy. Reads one micro-batch of the data.

    Args:
        config: Resolved.
        largest_batch: Samples of the largest global batch.
        allow: See `component`.

    Raises:
        PredictionError: The model cannot be run without data in its tensors.
        DataError: The data cannot be read.
    """
    launch, micro = config["launch"], config["batch"]["micro"]
    processes = count_processes(launch["processes"], launch["device"])
    ranks = processes * Hosts.of(launch["hosts"]).least
    share = -(-largest_batch // ranks)
    samples = share if micro == "auto" else min(micro, share)
    tensor = max(config["strategy"].get("tensor", 0), TENSOR)
    whole = measure(config, samples, allow, tensor)
    rank = _memory_of_rank(launch["device"], processes)
    hosts = list(axes_of(config["comm"], processes, ranks).values())[-1]
    needs = needed(whole, ranks, hosts if ranks % hosts == 0 else 1, accumulates=share > samples)
    if whole.split and ranks % tensor == 0:
        shared = share * tensor if micro == "auto" else min(micro, share * tensor)  # neighbors have one share together
        larger = replace(whole, activations=whole.activations * shared // samples)
        needs["tensor_parallel"] = split(larger, ranks, tensor, accumulates=share * tensor > shared)
    return Memory(rank, tuple(_judged(needs, rank)), ASSUMED.format(micro=samples))


def measure(config: Mapping[str, Any], samples: int, allow: tuple[str, ...] = (), tensor: int = TENSOR) -> Whole:
    """Run one update on tensors without data, and count what stays.

    Raises:
        PredictionError: The model looks at values, or an operator has no shapes.
    """
    data = component(config["data"], allow, "workers")
    stream = SampleStream(training_set(data), config["run"]["seed"])
    batch = stream.fetch(np.arange(samples, dtype=np.int64))
    mode = FakeTensorMode()
    try:
        with mode:
            return _measured(config, tree_map_only(Tensor, mode.from_tensor, batch), allow, tensor)
    except (RuntimeError, NotImplementedError) as error:
        raise PredictionError(f"the memory cannot be foretold: the model does not run without data: {error}") from error


def _measured(config: Mapping[str, Any], batch: Any, allow: tuple[str, ...], tensor: int) -> Whole:
    model = _built({**config, "compile": False, "sync_batchnorm": False}, allow)
    optimizer = make_optimizer(config, model, allow)
    loss = loss_for(model, component(config["loss"], allow) if config["loss"] else None)
    own = {each.untyped_storage()._cdata for each in _tensors(model)}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
        held.append(storage)
        return tensor

    held: list[Any] = []  # so that no identity is used twice
    with saved_tensors_hooks(keep, lambda tensor: tensor), _autocast(config):
        value = loss(model, batch)
    value.backward()  # type: ignore[no-untyped-call]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = _nbytes(parameter.grad for parameter in trained)
    optimizer.step()
    state = _nbytes(value for values in optimizer.state.values() for value in values.values())
    weights = _nbytes(_tensors(model))
    blocks = max(_nbytes(block.parameters()) for block in blocks_of(model))
    average = weights if config["ema"] else 0
    parted = _nbytes(split_parameters(model, tensor))
    return Whole(weights, gradients, state, average, blocks, sum(kept.values()), parted)


def _built(config: Mapping[str, Any], allow: tuple[str, ...]) -> nn.Module:
    """The model, of tensors without data. With an adapter by way of the meta device: peft cannot move such tensors."""
    if not config.get("adapter"):
        return build_model(config, allow)
    with unset_fake_temporarily(), shapes_only():
        model = build_model(config, allow)
    made: dict[Tensor, Tensor] = {}  # what is tied stays tied
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty(parameter.shape, dtype=parameter.dtype)
            made.setdefault(parameter, nn.Parameter(empty, parameter.requires_grad))
            setattr(module, name, made[parameter])
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))
    return model


def _autocast(config: Mapping[str, Any]) -> AbstractContextManager[Any]:
    kind = autocast_of(config["precision"])
    return nullcontext() if kind is None else torch.autocast("cpu", kind)


def _tensors(model: nn.Module) -> Iterable[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _nbytes(tensors: Iterable[Any]) -> int:
    return sum(each.numel() * each.dtype.itemsize for each in tensors if isinstance(each, Tensor))


def _judged(needs: Mapping[str, tuple[int, int, int]], rank: int) -> Iterable[Need]:
    for name, (kept, gathered, activations) in needs.items():
        yield Need(name, kept, gathered, activations, kept + gathered + activations <= rank)


def _memory_of_rank(device: str, processes: int) -> int:
    if device != "cpu" and torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    return available() // processes


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f}"
