"""Starting DeepSpeed's engine, and what it cannot be started with."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradwire.trainer.config.names import nearest
from gradwire.trainer.errors import StrategyError
from gradwire.trainer.strategies.deepspeed_settings import Finding, Json, for_engine, ours, stage_of, undriven, value_of

NOT_INSTALLED = "needs DeepSpeed, which is not installed: pip install 'gradwire[deepspeed]'"
_TORCHS = ("ASGD", "Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
ELEMENTWISE = frozenset((*_TORCHS, "DeepSpeedCPUAdam", "DeepSpeedCPULion"))
"""Optimizers that update every element by what is known of that element, so that they may be cut anywhere."""


def not_elementwise(optimizer: str) -> str | None:
    """Why an optimizer, by its class's name, cannot work on ZeRO's partitions; None where it can."""
    if optimizer in ELEMENTWISE:
        return None
    others = ", ".join(sorted(ELEMENTWISE))
    return f"ZeRO cuts parameters anywhere, and {optimizer} wants them whole: take one of {others}"


def misspelt(config: Json, device: str) -> Iterator[Finding]:
    """What DeepSpeed says against keys and values of its `zero_optimization`; it leaves others without a look at them.

    Args:
        config: Of DeepSpeed.
        device: The kind on which this process trains, if it does.
    """
    from pydantic import ValidationError

    os.environ.setdefault("DS_ACCELERATOR", device)
    with redirect_stdout(sys.stderr):
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig as Known

    try:
        Known(**(value_of(config, "zero_optimization") or {}))
    except ValidationError as error:
        names = [field.alias or name for name, field in Known.model_fields.items()]
        for each in error.errors():
            key = ".".join(map(str, each["loc"]))
            near = nearest(key, names) if each["type"] == "extra_forbidden" else None
            message = f"no such key of DeepSpeed's; did you mean {near}?" if near else f"DeepSpeed says: {each['msg']}"
            yield f"zero_optimization.{key}", message


def check(config: Json) -> None:
    """Raise StrategyError where DeepSpeed's engine cannot be driven with a configuration, or would decide itself."""
    if stage_of(config) == 0:
        raise StrategyError("at stage 0 nothing is split: DataParallel is the strategy for that")
    for key, reason in ours(config):
        raise StrategyError(f"{key} is decided by {reason}: leave it out of DeepSpeed's configuration")
    for key, message in undriven(config):
        raise StrategyError(f"{key}: {message}")


def start(model: nn.Module, optimizer: Optimizer, config: Json, device: torch.device) -> Any:
    """DeepSpeed's engine over a model and its optimizer. A collective."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)  # it takes what it finds on the machine otherwise
    os.environ.setdefault("LOCAL_RANK", str(device.index or 0))
    # as its own launcher does; without, it starts a process at every reduction to count a CPU's nodes
    os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # newer torch has other names for what DeepSpeed calls, and says so at each call
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning)
    try:
        with redirect_stdout(sys.stderr):  # where commands print their results, DeepSpeed tells what it has built
            import deepspeed

            deepspeed.ops.__compatible_ops__ = {}  # else it compiles, at the first start on CPUs, what inference uses
            engine, *_ = deepspeed.initialize(
                model=model, optimizer=optimizer, config=for_engine(config), dist_init_required=False
            )
    except ModuleNotFoundError as error:
        raise StrategyError(f"strategy=deepspeed: {NOT_INSTALLED} ({error.name} is missing)") from error
    except (ValueError, AssertionError, KeyError, TypeError) as error:
        raise StrategyError(f"DeepSpeed refuses its configuration: {error}") from error
    return engine
