"""Whether the section `comm` fits the run: its axes to the ranks, its codecs to the axes."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gradwire.trainer.config.checker import TARGET
from gradwire.trainer.config.names import nearest
from gradwire.trainer.config.values import Fault

Node = Mapping[str, Any]
_RING = "ring"  # the axis where no topology is given


def axes_of(comm: Node, processes: int, world_size: int) -> dict[str, int]:
    """Ranks on each axis, as far as can be known before the ranks have met.

    Args:
        comm: The section.
        processes: Ranks on each host.
        world_size: Ranks altogether.
    """
    topology = comm["topology"]
    if topology == "detect":
        return {"local": processes, "node": max(world_size // processes, 1)}
    return dict(topology) if topology else {_RING: world_size}


def misfits(comm: Node, processes: int, world_size: int) -> Iterator[Fault]:
    """Axes that do not make the run's ranks, and codecs that have no axis."""
    axes = axes_of(comm, processes, world_size)
    if math.prod(axes.values()) != world_size:
        product = " × ".join(f"{name} {size}" for name, size in axes.items())
        message = f"{product} is {math.prod(axes.values())} ranks and the run has {world_size}"
        yield Fault("comm.topology", f"{message} (launch.processes times launch.hosts)")
    coded = coded_axes(comm)
    for axis in coded:
        if axis not in axes:
            near = nearest(axis, list(axes))
            message = f"no such axis in comm.topology; the axes are {', '.join(axes)}"
            yield Fault(f"comm.codecs.{axis}", message, near and f"comm.codecs.{near}")
    if comm["algorithm"] == "native" and len(axes) == 1 and coded.keys() == axes.keys():
        (axis,) = axes
        message = f"native is the backend's own all-reduce and the only axis, {axis}, has a codec: write two_shot"
        yield Fault("comm.algorithm", message, "comm.algorithm=two_shot")
    yield from _low_rank_misfits(comm, coded, [axis for axis, size in axes.items() if size > 1])


def _low_rank_misfits(comm: Node, coded: Mapping[str, str], sending: list[str]) -> Iterator[Fault]:
    """PowerSGD sums what the other axes have scattered: it belongs on the last axis, and the axes keep their order."""
    for axis in (axis for axis, name in coded.items() if name == "PowerSGD" and axis in sending):
        if axis != sending[-1]:
            yield Fault(f"comm.codecs.{axis}", f"PowerSGD belongs on the last axis, {sending[-1]}")
        elif comm["rotate"]:
            yield Fault(
                "comm.rotate", f"PowerSGD on {axis} needs the axes in one order: write false", "comm.rotate=false"
            )
        elif comm["algorithm"] == "auto":
            yield Fault(
                "comm.algorithm",
                "auto chooses among codecs without PowerSGD: write two_shot",
                "comm.algorithm=two_shot",
            )


def too_late(config: Node, follows: str | None) -> Iterator[Fault]:
    """What cannot be where gradients are applied one update late.

    Args:
        config: As `Checker` gave it back.
        follows: The key of what follows the noise scale; None where nothing does.
    """
    if config["comm"]["overlap"] != "update":
        return
    instead = "comm.overlap=backward"
    if config["strategy"][TARGET].endswith(".Single"):
        yield Fault("comm.overlap", "update is for strategy=ddp: Single has nothing that could be delayed", instead)
    if config["precision"] == "fp16":
        message = "update cannot follow the scale of the loss in fp16: use precision=bf16 or fp32, or write backward"
        yield Fault("comm.overlap", message, instead)
    if follows:
        message = f"update leaves nothing to measure the noise scale on, and {follows} follows it: write backward"
        yield Fault("comm.overlap", message, instead)


def unjournalled(config: Node) -> Iterator[Fault]:
    """What cannot be where every update is journalled; `config` as `Checker` gave it back."""
    if config["checkpoint"]["journal"] is None:
        return
    instead = "checkpoint.journal=null"
    if config["strategy"][TARGET].endswith(".Single"):
        yield Fault("checkpoint.journal", "needs strategy=ddp, which trains on one process too", instead)
    if config["comm"]["overlap"] == "update":
        message = "gradients that come one update late (comm.overlap=update) are not journalled: write null"
        yield Fault("checkpoint.journal", message, instead)


def remarks(comm: Node, processes: int, world_size: int) -> Iterator[str]:
    """What is no mistake and still should be known, one line each."""
    axes, coded = axes_of(comm, processes, world_size), coded_axes(comm)
    for axis, codec in coded.items():
        if axes.get(axis) == 1:
            yield f"note: comm.codecs.{axis} is {codec} and the axis has one rank: nothing is sent there"
    rounds = comm["algorithm"] not in ("native", "two_shot", "auto")
    if rounds and all(axis in coded for axis, size in axes.items() if size > 1) and coded:
        yield (
            f"note: comm.algorithm={comm['algorithm']} is for axes without codec, and every axis has one: coded axes "
            "take two shots"
        )


def coded_axes(comm: Node) -> dict[str, str]:
    """The name of the codec of each axis that has one."""
    named = {axis: str(node[TARGET]).rpartition(".")[2] for axis, node in comm["codecs"].items()}
    return {axis: name for axis, name in named.items() if name != "NoCodec"}
