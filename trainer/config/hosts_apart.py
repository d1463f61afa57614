"""What cannot be where hosts train by themselves between synchronizations (strategy=diloco)."""

from collections.abc import Iterator, Mapping
from typing import Any

from gradwire.trainer.config.checker import TARGET
from gradwire.trainer.config.communication import axes_of
from gradwire.trainer.config.construction import argument, build_model
from gradwire.trainer.config.values import Fault

Config = Mapping[str, Any]
_WHO = "hosts train by themselves between synchronizations (strategy=diloco)"


def trains_apart(config: Config) -> bool:
    """Whether the strategy is DiLoCo."""
    return str(config["strategy"][TARGET]).endswith(".DiLoCo")


def not_apart(
    config: Config, allow: tuple[str, ...], follows: str | None, processes: int, world_size: int
) -> Iterator[Fault]:
    """What does not go with hosts that train by themselves.

    Args:
        config: As `Checker` gave it back.
        allow: Packages that the user allows targets from.
        follows: The key of what follows the noise scale; None where nothing does.
        processes: Ranks on each host.
        world_size: Ranks altogether.
    """
    if trains_apart(config):
        yield from _hosts(config, processes, world_size)
        yield from _calendar(config, allow)
        yield from _beside(config, follows)


def _hosts(config: Config, processes: int, world_size: int) -> Iterator[Fault]:
    comm, batch = config["comm"], config["batch"]["size"]
    *_, (last, hosts) = axes_of(comm, processes, world_size).items()
    if comm["topology"] is None and world_size > 1:
        message = (
            "is null, one ring of all ranks, and the hosts that strategy=diloco synchronizes are its last axis: write "
            "detect, or name the axes"
        )
        yield Fault("comm.topology", message, "comm=hierarchical")
    elif hosts < 2:
        message = (
            f"diloco synchronizes hosts, the last axis of comm.topology, and {last} has one: use strategy=ddp, or give "
            "an axis that has several"
        )
        yield Fault("strategy", message, "strategy=ddp")
    elif batch < world_size:
        yield Fault("batch.size", f"{batch} samples leave hosts without any: each of {world_size} ranks needs one")


def _calendar(config: Config, allow: tuple[str, ...]) -> Iterator[Fault]:
    from gradwire.trainer.errors import StrategyError
    from gradwire.trainer.strategies.outer import Calendar, deal

    every, fragments, overlap = (
        argument(config, "strategy", name, allow) for name in ("every", "fragments", "overlap")
    )
    try:
        Calendar(every, fragments)
    except StrategyError as error:
        yield Fault("strategy.fragments", str(error))
        return
    try:
        Calendar(every, fragments, overlap)
    except StrategyError as error:
        yield Fault("strategy.overlap", str(error))
    model = build_model(config, allow) if fragments > 1 else None
    if model is None or isinstance(model, Fault):
        return
    try:
        deal(model, fragments)
    except StrategyError as error:
        yield Fault("strategy.fragments", str(error))


def _beside(config: Config, follows: str | None) -> Iterator[Fault]:
    if config["checkpoint"]["journal"] is not None:
        message = f"no reduced gradient tells what an update did where {_WHO}: write null"
        yield Fault("checkpoint.journal", message, "checkpoint.journal=null")
    if config["comm"]["overlap"] == "update":
        message = f"update delays what all ranks reduce, and {_WHO}: write backward, and give strategy.overlap"
        yield Fault("comm.overlap", message, "comm.overlap=backward")
    if follows:
        message = f"it is to follow the noise scale, which nobody measures while {_WHO}: use another, or strategy=ddp"
        yield Fault(follows, message, "strategy=ddp")
    if config["precision"] == "fp16":
        message = f"each host would have a loss scale of its own where {_WHO}: use bf16 or fp32"
        yield Fault("precision", message, "precision=bf16")
    if config["ema"] is not None:
        message = f"each host would average weights of its own where {_WHO}; the outer parameters are the average"
        yield Fault("ema", message, "ema=null")
    if config["sync_batchnorm"]:
        message = f"statistics over all ranks would have hosts wait for each other in every layer, and {_WHO}"
        yield Fault("sync_batchnorm", message, "sync_batchnorm=false")
