"""DeepSpeed's own configuration: read as it is, held against what gradwire decides, completed for the engine."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradwire.trainer.errors import StrategyError

Json = Mapping[str, Any]
Finding = tuple[str, str]
"""A dotted key of DeepSpeed's configuration (nothing: of ours), and what is wrong with it."""
AUTO = "auto"  # what Hugging Face writes where the trainer is to fill a value in

_OURS: Mapping[str, str] = {
    "train_batch_size": "batch.size",
    "train_micro_batch_size_per_gpu": "batch.micro",
    "gradient_accumulation_steps": "batch.size / batch.micro / ranks",
    "gradient_clipping": "clip",
    "optimizer": "optimizer",
    "scheduler": "lr",
}
_LOGS = "it happens in the engine's own step, and gradwire steps itself: see logger"
_UNDRIVEN: Mapping[str, str] = {
    "fp16.enabled": "its loss scale is not in our snapshots: use precision=fp16 or bf16",
    "zero_optimization.zenflow": "it applies parts of a gradient in other updates",
    "zero_optimization.zero_hpz_partition_size": "weights would lie on ranks a second time, which is not saved",
    "zero_optimization.elastic_checkpoint": "snapshots are ours, and load at any number of ranks as they are",
    "hybrid_engine.enabled": "it trains and generates with other weights",
    "data_efficiency.enabled": "which samples come when is the plan's (data, batch)",
    "curriculum_learning.enabled": "which samples come when is the plan's (data, batch)",
    "elasticity.enabled": "the batch is the plan's (batch.size)",
    "autotuning.enabled": "it starts runs of its own",
    "compile.deepcompile": "gradients lie elsewhere there; compile=true compiles blocks",
    "tensor_parallel.autotp_size": "layers are split by strategy=tensor_parallel",
    "sequence_parallel_size": "ranks would share samples",
    "expert_parallel.enabled": "experts would lie on other ranks than their gradients",
    "progressive_layer_drop.enabled": "gradwire calls the model itself",
    "eigenvalue.enabled": "it happens in the engine's own step, and gradwire steps itself",
    "tensorboard.enabled": _LOGS,
    "wandb.enabled": _LOGS,
    "csv_monitor.enabled": _LOGS,
    "comet.enabled": _LOGS,
    "flops_profiler.enabled": _LOGS,
    "wall_clock_breakdown": _LOGS,
}


@dataclass(frozen=True)
class Decided:
    """What gradwire decides, and DeepSpeed's configuration may at most repeat.

    Args:
        batch: Samples of the largest global batch.
        micro: Samples of a pass of one rank; None for a rank's whole share.
        clip: Largest norm of a gradient.
        precision: Of the passes.
        optimizer: Its class and arguments.
        schedule: Of the learning rate, by name.
    """

    batch: int
    micro: int | None = None
    clip: float | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    optimizer: Json | None = None
    schedule: str = "the plan"

    def passes(self, ranks: int) -> tuple[int, int]:
        """The micro-batch, and how many of these a rank adds up."""
        micro = self.micro or max(self.batch // ranks, 1)
        return micro, max(self.batch // (micro * ranks), 1)


def read(config: Json | str | None) -> dict[str, Any]:
    """DeepSpeed's configuration: as it stands here, or in a JSON or YAML file.

    Raises:
        StrategyError: there is no such file, or it holds something else.
    """
    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    path = Path(config).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StrategyError(f"DeepSpeed's configuration {config} cannot be read: {error.strerror}") from error
    found = _parsed(text, config)
    if not isinstance(found, dict):
        raise StrategyError(f"{config} holds a {type(found).__name__}, and DeepSpeed's configuration is a mapping")
    return found


def _parsed(text: str, name: str) -> Any:
    import yaml  # type: ignore[import-untyped]

    try:
        return json.loads(text)
    except ValueError as error:
        if name.endswith(".json"):
            raise StrategyError(f"{name} is not valid JSON: {error}") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise StrategyError(f"{name} is neither valid JSON nor YAML: {error}") from error


def value_of(config: Json, key: str) -> Any:
    """What stands at a dotted key; None where nothing does, or `auto`."""
    found: Any = config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return None if found == AUTO else found


def stage_of(config: Json) -> int:
    """The ZeRO stage; one that does not exist is told by `undriven`."""
    stage = value_of(config, "zero_optimization.stage")
    return stage if isinstance(stage, int) else 0


def ours(config: Json) -> Iterator[Finding]:
    """What in DeepSpeed's configuration gradwire decides, and by which of its own keys."""
    return ((key, name) for key, name in _OURS.items() if value_of(config, key) is not None)


def for_strategy(config: Json) -> dict[str, Any]:
    """What is left to DeepSpeed of its configuration, once that was held against the run's."""
    return {key: _decided_there(value) for key, value in config.items() if key not in _OURS and value != AUTO}


def _decided_there(value: Any) -> Any:
    """A value without what it leaves to others."""
    if not isinstance(value, Mapping):
        return value
    return {key: _decided_there(each) for key, each in value.items() if each != AUTO}


def for_engine(config: Json) -> dict[str, Any]:
    """What the engine is given: every pass is a batch to it, and gradients are clipped before the step."""
    return {
        "zero_allow_untested_optimizer": True,  # ours is torch's own
        "zero_force_ds_cpu_optimizer": False,
        **for_strategy(config),
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
    }


def undriven(config: Json) -> Iterator[Finding]:
    """What in DeepSpeed's configuration cannot be under this trainer."""
    stage = value_of(config, "zero_optimization.stage")
    if stage not in (0, 1, 2, 3):
        found = "and this says none" if stage is None else f"found {stage}"
        yield "zero_optimization.stage", f"ZeRO has the stages 0 to 3, {found}: write one of them"
    for key, reason in _UNDRIVEN.items():
        if (found := value_of(config, key)) not in (None, False, 0, 1) or found is True:
            yield key, f"is not for gradwire, {reason}: leave it out"
    if value_of(config, "managed_gradient_accumulation") is False:
        yield "managed_gradient_accumulation", "micro-batches are counted by gradwire: leave it out"
    for what in ("offload_optimizer", "offload_param"):
        if value_of(config, f"zero_optimization.{what}.device") == "nvme":
            yield f"zero_optimization.{what}.device", "what lies on NVMe is not in our snapshots: write cpu"
        if value_of(config, f"zero_optimization.{what}.super_offload"):
            yield f"zero_optimization.{what}.super_offload", "it steps before the gradient was checked: leave it out"


def contradictions(config: Json, decided: Decided, ranks: int) -> Iterator[Finding]:
    """Where DeepSpeed's configuration says otherwise than gradwire decides, or cannot do that.

    Args:
        config: What `read` gave.
        decided: What gradwire decides.
        ranks: Of the run.
    """
    yield from _batch(config, decided, ranks)
    yield from _precision(config, decided)
    yield from _optimizer(config, decided)
    if (scheduler := value_of(config, "scheduler")) is not None:
        yield "scheduler", _contradiction(value_of(scheduler, "type"), "lr", decided.schedule)


def _batch(config: Json, decided: Decided, ranks: int) -> Iterator[Finding]:
    micro, passes = decided.passes(ranks)
    each = micro * ranks
    if decided.batch != each * passes:
        below = decided.batch // each * each
        near = f"{below} or {below + each}" if below else str(each)
        message = (
            f"{decided.batch} samples are not micro-batches of {micro} on each of {ranks} ranks, and DeepSpeed divides "
            f"no other way: write {near}"
        )
        yield "", message
        return
    said = {
        "train_batch_size": decided.batch,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": passes,
        "gradient_clipping": decided.clip or 0.0,
    }
    for key, value in said.items():
        found = value_of(config, key)
        if found is not None and found != value:
            shown = "null" if key == "gradient_clipping" and decided.clip is None else value
            yield key, _contradiction(found, _OURS[key], shown)


def _contradiction(found: Any, name: str, ours: Any) -> str:
    return f"{found} contradicts {name}, which is {ours} and counts: write the same or leave it out"


def _precision(config: Json, decided: Decided) -> Iterator[Finding]:
    told = [key for key in ("bf16.enabled", "bfloat16.enabled", "torch_autocast.enabled") if value_of(config, key)]
    if told and decided.precision != "bf16":
        yield told[0], f"true contradicts precision, which is {decided.precision} and counts: write precision=bf16"
        return
    low = value_of(config, "bf16.enabled") or value_of(config, "bfloat16.enabled")
    if low and stage_of(config) == 0:
        yield "bf16.enabled", "stage 0 keeps no weights in float32 beside: leave it out, precision=bf16 is autocast"
    if low and value_of(config, "data_types.grad_accum_dtype") == "fp32" and stage_of(config) == 1:
        yield "data_types.grad_accum_dtype", "with bf16 at stage 1, partitions are not ZeRO's: take stage 2"


def _optimizer(config: Json, decided: Decided) -> Iterator[Finding]:
    """Our optimizer is used; DeepSpeed's section may repeat it."""
    own, theirs = decided.optimizer, value_of(config, "optimizer")
    if own is None or not isinstance(theirs, Mapping):
        return
    name = str(own.get("_target_", "")).rpartition(".")[2]
    kind = value_of(theirs, "type")
    adam = kind in ("Adam", "AdamW") and value_of(theirs, "params.adam_w_mode") is not False
    if kind is not None and name.lower() != ("adamw" if adam else str(kind).lower()):
        yield "optimizer.type", _contradiction(kind, "optimizer", name)
    for key in ("lr", "betas", "eps", "weight_decay", "momentum"):
        found, value = value_of(theirs, f"params.{key}"), own.get(key)
        if found is not None and value is not None and _plain(found) != _plain(value):
            yield f"optimizer.params.{key}", _contradiction(found, f"optimizer.{key}", value)


def _plain(value: Any) -> Any:
    return [float(each) for each in value] if isinstance(value, list | tuple) else float(value)
