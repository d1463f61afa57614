"""Whether a run can measure the gradient noise scale, as far as that shows before it starts."""

import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from gradwire.trainer.config.construction import argument, build_model
from gradwire.trainer.config.instantiation import instantiate
from gradwire.trainer.config.values import Fault

Config = Mapping[str, Any]
_AN_EPOCH = range(1_000_000)  # stands in for the data where its length is not known yet


def unmeasurable(config: Config, allow: tuple[str, ...], world_size: int, gpus: int) -> Iterator[Fault]:
    """Why a run cannot measure what its batch size or learning rate are to follow.

    Args:
        config: As `Checker` gave it back; its plan is accepted.
        allow: Packages that the user allows targets from.
        world_size: Workers altogether.
        gpus: GPUs of this machine.
    """
    key = measured_part(config, allow)
    if key is None:
        return
    yield from _too_rarely(config, allow, key)
    passes = _passes(config, allow, world_size, gpus)
    reason = None if passes is None else _obstacle(config, allow, *passes)
    if reason is not None:
        yield Fault(key, f"it is to follow the noise scale, which this run cannot measure: {reason}")


def never_measured(config: Config, allow: tuple[str, ...]) -> Iterator[str]:
    """A note where the noise scale is to be measured, for the metrics alone, and never is."""
    every = config["noise_scale"]["every"]
    if every is None or measured_part(config, allow) is not None:
        return
    if config["comm"]["overlap"] == "update":
        yield "note: the noise scale is not measured where gradients come one update late (comm.overlap=update)"
        return
    found = _interval_and_run(config, allow)
    if found is not None and found[0] > found[1]:
        yield (
            f"note: noise_scale.every is {every} and the run takes {found[1]:,} {found[2]}: the noise scale is never "
            "measured; write a shorter interval, or null for never"
        )


def measured_part(config: Config, allow: tuple[str, ...]) -> str | None:
    """The key of what follows the noise scale; None where nothing does."""
    from gradwire.schedulers import Constant, Coupling

    rule = instantiate(config["batch"]["schedule"], allow)
    sizes = rule.batch(1.0 * Constant(), config["batch"]["size"]) if isinstance(rule, Coupling) else rule
    if getattr(sizes, "measures", False):
        return "batch.schedule"
    return "scaling" if getattr(instantiate(config["scaling"], allow), "measures", False) else None


def _too_rarely(config: Config, allow: tuple[str, ...], key: str) -> Iterator[Fault]:
    found = _interval_and_run(config, allow)
    if found is not None and found[0] >= found[1]:
        interval, length, unit = found
        every = config["noise_scale"]["every"]
        yield Fault(
            "noise_scale.every" if every is not None else key,
            f"the noise scale is first measured after {interval:,} {unit} and the run takes {length:,}, so that {key} "
            "has nothing to follow: measure more often, or lengthen the run",
        )


def _interval_and_run(config: Config, allow: tuple[str, ...]) -> tuple[int, int, str] | None:
    """How often the noise scale is measured, how long the run is, and their unit; None where that is not known yet."""
    from gradwire.schedulers import Duration, SchedulerError
    from gradwire.trainer.measuring import EVERY

    every = EVERY if config["noise_scale"]["every"] is None else Duration.parse(config["noise_scale"]["every"])
    length = Duration.parse(config["run"]["length"])
    if (length.unit == "epochs") != (every.unit == "epochs") and every.unit != "%":
        return None
    if every.unit == length.unit == "updates":
        return int(every.amount), math.ceil(length.amount), "updates"
    try:
        plan = _plan(config, allow)
        if every.unit == "updates":
            return int(every.amount), plan.total_updates, "updates"
        return plan.to_samples(every), plan.total_samples, "samples"
    except SchedulerError:
        return None  # epochs among others, or wall-clock time


def _plan(config: Config, allow: tuple[str, ...]) -> Any:
    from gradwire.trainer.assemble import build_plan

    context = argument(config, "data", "context", allow) or 1
    return build_plan(config, SimpleNamespace(train=_AN_EPOCH, context=context), allow)


def _passes(config: Config, allow: tuple[str, ...], world_size: int, gpus: int) -> tuple[int, int] | None:
    """Ranks that take part in the first update, and passes of each; None where the devices decide that."""
    from gradwire.schedulers import Clock

    plan, micro = _plan(config, allow), config["batch"]["micro"]
    if micro == "auto":
        if gpus and config["launch"]["device"] != "cpu":
            return None
        micro = math.ceil(plan.largest_batch / world_size)
    first = plan.at(Clock()).batch_size
    return min(world_size, first), math.ceil(first / (world_size * micro))


def _obstacle(config: Config, allow: tuple[str, ...], ranks: int, passes: int) -> str | None:
    from gradwire.trainer.noise import obstacle
    from gradwire.trainer.norm_layers import norm_layers

    if ranks * passes > 1 and not (config["sync_batchnorm"] and ranks > 1):
        return None
    model = build_model(config, allow)
    if model is None or isinstance(model, Fault):
        return None  # it cannot be built without its weights
    return obstacle(
        ranks,
        passes,
        norm_layers=bool(norm_layers(model)),
        compiled=config["compile"],
        synchronized=config["sync_batchnorm"] and _has_batch_norm(model),
    )


def _has_batch_norm(model: Any) -> bool:
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(module, _BatchNorm) for module in model.modules())
