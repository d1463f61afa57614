"""Whether DeepSpeed's own configuration goes with the run's, and where it takes its place in that."""

import importlib.util
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gradwire.trainer.config.checker import TARGET
from gradwire.trainer.config.communication import coded_axes
from gradwire.trainer.config.values import Fault

if TYPE_CHECKING:
    from gradwire.trainer.strategies.deepspeed_settings import Decided

Node = Mapping[str, Any]
_ZERO = "gradwire.trainer.strategies.DeepSpeed"
_REPLICAS = "gradwire.trainer.strategies.DataParallel"


def decided(config: Node) -> "Decided":
    """What the run's configuration says that DeepSpeed's may only repeat."""
    from gradwire.trainer.strategies.deepspeed_settings import Decided

    micro = config["batch"]["micro"]
    return Decided(
        batch=config["batch"]["size"],
        micro=None if micro == "auto" else micro,
        clip=config["clip"],
        precision=config["precision"],
        optimizer=config["optimizer"],
        schedule=config["lr"][TARGET].rpartition(".")[2],
    )


def of_stage(strategy: Node) -> Node:
    """The node that is built for a strategy: DeepSpeed's with what is left to it, at stage 0 that of replicas."""
    if strategy[TARGET] != _ZERO:
        return strategy
    from gradwire.trainer.strategies.deepspeed_settings import for_strategy, read, stage_of

    settings = read(strategy.get("config"))
    return {TARGET: _ZERO, "config": for_strategy(settings)} if stage_of(settings) else {TARGET: _REPLICAS}


def with_settings(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with what DeepSpeed's file holds in the place of the file's name, so that a run keeps it."""
    strategy = config["strategy"]
    if strategy[TARGET] != _ZERO:
        return config
    from gradwire.trainer.strategies.deepspeed_settings import read

    return {**config, "strategy": {**strategy, "config": read(strategy.get("config"))}}


def undrivable(config: Node, world_size: int, gpus: int) -> Iterator[Fault]:
    """What DeepSpeed cannot do, or is told otherwise than the run; nothing under other strategies.

    Args:
        config: As `Checker` gave it back.
        world_size: Ranks altogether.
        gpus: Of this machine.
    """
    strategy = config["strategy"]
    if strategy[TARGET] != _ZERO:
        return
    from gradwire.trainer.errors import StrategyError
    from gradwire.trainer.strategies.deepspeed_engine import NOT_INSTALLED, misspelt
    from gradwire.trainer.strategies.deepspeed_settings import contradictions, read, stage_of, undriven, value_of

    try:
        settings = read(strategy.get("config"))
    except StrategyError as error:
        yield Fault("strategy.config", str(error))
        return
    found = dict([*undriven(settings), *contradictions(settings, decided(config), world_size)])
    for key, message in found.items():
        yield Fault(f"strategy.config.{key}" if key else "batch.size", message)
    if importlib.util.find_spec("deepspeed") is None:
        yield Fault("strategy", NOT_INSTALLED)
        return
    device = "cuda" if gpus and config["launch"]["device"] != "cpu" else "cpu"
    for key, message in misspelt(settings, device):
        if key not in found:
            yield Fault(f"strategy.config.{key}", message)
    if stage := stage_of(settings):
        yield from _partitioned(config, stage, gpus)
        if config.get("adapter") is not None and value_of(settings, "bf16.enabled") is True:
            message = "frozen weights would be kept and saved in bfloat16, and an exported adapter would fit no base"
            yield Fault("strategy.config.bf16.enabled", f"{message}: leave it out; precision=bf16 is autocast then")


def _partitioned(config: Node, stage: int, gpus: int) -> Iterator[Fault]:
    """What does not go with gradients that DeepSpeed reduces into its own partitions."""
    from gradwire.trainer.strategies.deepspeed_engine import not_elementwise

    comm, own = config["comm"], f"at stage {stage} DeepSpeed reduces gradients itself"
    stage_0 = "strategy.config.zero_optimization.stage=0"
    if comm["overlap"] == "update":
        yield Fault("comm.overlap", f"{own}: write backward, or {stage_0}", "comm.overlap=backward")
    if comm["algorithm"] != "native":
        yield Fault("comm.algorithm", f"{own}: write native, or {stage_0}", "comm.algorithm=native")
    for axis in coded_axes(comm):
        yield Fault(f"comm.codecs.{axis}", f"{own}, without codecs: comm=native, or {stage_0}")
    if reason := not_elementwise(config["optimizer"][TARGET].rpartition(".")[2]):
        yield Fault("optimizer", reason)
    if config["batch"]["micro"] == "auto" and config["launch"]["device"] != "cpu" and gpus:
        message = "auto tries what fits in passes that DeepSpeed reduces, and a rank may not fail alone: write a number"
        yield Fault("batch.micro", message)
