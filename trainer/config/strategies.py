"""What a sharded strategy cannot be combined with."""

from collections.abc import Iterator, Mapping
from typing import Any

from gradwire.trainer.config.checker import TARGET
from gradwire.trainer.config.communication import axes_of, coded_axes
from gradwire.trainer.config.targets import resolve_target
from gradwire.trainer.config.values import Fault

Node = Mapping[str, Any]


def unsharded(
    config: Node, allow: tuple[str, ...], processes: int, world_size: int, follows: str | None
) -> Iterator[Fault]:
    """What does not go with sharded weights; nothing where they are whole.

    Args:
        config: As `Checker` gave it back.
        allow: Packages that the user allows targets from.
        processes: Ranks on each host.
        world_size: Ranks altogether.
        follows: The key of what follows the noise scale; None where nothing does.
    """
    strategy, comm = config["strategy"], config["comm"]
    if not strategy[TARGET].endswith(".FullySharded"):
        return
    if comm["overlap"] == "update":
        message = "sharded gradients are reduced during backward: write backward, or use strategy=ddp"
        yield Fault("comm.overlap", message, "comm.overlap=backward")
    if strategy.get("cpu_offload") and config["launch"]["device"] == "cpu":
        yield Fault("strategy.cpu_offload", "is for CUDA, and launch.device is cpu", "strategy.cpu_offload=false")
    if strategy.get("tensor", 1) > 1 and follows:
        message = f"ranks that split layers cannot measure the noise scale, and {follows} follows it: write 1"
        yield Fault("strategy.tensor", message, "strategy.tensor=1")
    yield from _tensor(config, world_size)
    yield from _replicas(config, allow, axes_of(comm, processes, world_size))


def _tensor(config: Node, world_size: int) -> Iterator[Fault]:
    """Layers are split among neighboring ranks only where model and ranks divide."""
    tensor, model = config["strategy"].get("tensor", 1), config["model"]
    if tensor == 1:
        return
    if config.get("adapter") is not None:
        yield Fault("strategy.tensor", "layers with an adapter are not split: write 1, or adapter=null")
    if config["strategy"].get("replicas"):
        yield Fault("strategy.tensor", "layers are split within hosts or replicated over them, not both: write 1")
    if world_size % tensor:
        yield Fault("strategy.tensor", f"{tensor} must divide the {world_size} ranks of the run")
    if not model[TARGET].endswith(".Decoder"):
        yield Fault("strategy.tensor", f"splits the layers of the built-in decoder, not of {model[TARGET]}: write 1")
    elif model.get("kv_heads", tensor) % tensor:
        yield Fault("strategy.tensor", f"{tensor} must divide model.kv_heads={model['kv_heads']}")


def _replicas(config: Node, allow: tuple[str, ...], axes: Mapping[str, int]) -> Iterator[Fault]:
    """Codecs belong on the axis of the replicas, and must not carry anything over."""
    coded = coded_axes(config["comm"])
    replicas = bool(config["strategy"].get("replicas"))
    last = list(axes)[-1]
    if replicas and len(axes) == 1 and axes[last] > 1:
        message = f"replicas lie along the last axis of comm.topology, and {last} is the only one: comm=hierarchical"
        yield Fault("strategy.replicas", message)
    for axis, name in coded.items():
        if not replicas or axis != last:
            only = f"only {last}, the axis of the replicas, can have a codec" if replicas else "strategy=hsdp has one"
            yield Fault(f"comm.codecs.{axis}", f"weights are sharded along {axis} without codecs: {only}")
        elif resolve_target(config["comm"]["codecs"][axis][TARGET], allow).feedback:
            message = f"{name} carries over what it lost, which sharded strategies do not keep: use int8, bf16 or fp16"
            yield Fault(f"comm.codecs.{axis}", message, f"comm/codec@comm.codecs.{axis}=int8")
