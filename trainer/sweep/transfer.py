"""From the best trial of a small configuration to a large one: what the scaling rules predict there.

The large configuration is the trial's with `sweep.transfer`'s overrides. Its scaling rule takes the batch of the trial
for its reference, the batch at which the learning rate was found. Nothing scales unless a rule is named, and no rule
here moves rates with a model's width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.schedulers.errors import SchedulerError
from gradwire.trainer.config.errors import ConfigError, Mistake
from gradwire.trainer.config.interpolation import MISSING
from gradwire.trainer.sweep.definition import Definition, quoted
from gradwire.trainer.sweep.space import key_of

_BATCH = "batch.size"  # may be swept, and then be another in the large configuration


@dataclass(frozen=True)
class Settings:
    """An optimizer's settings where the batch is largest.

    Args:
        batch_size: That batch, samples.
        lr: Learning rate, before its schedule.
        betas: Adam's betas; None for optimizers without.
        updates: Updates of the run.
    """

    batch_size: int
    lr: float
    betas: tuple[float, float] | None
    updates: int


@dataclass(frozen=True)
class Prediction:
    """What a large configuration is trained with.

    Args:
        config: The configuration.
        rule: The scaling rule's class.
        small: The trial's settings.
        large: The settings that the rule predicts.
    """

    config: Mapping[str, Any]
    rule: str
    small: Settings
    large: Settings

    def __str__(self) -> str:
        small, large = self.small, self.large
        told = f"lr {small.lr:.4g} at batch {small.batch_size} -> {large.lr:.4g} at batch {large.batch_size}"
        if small.betas != large.betas:
            told += f", betas {_shown(small.betas)} -> {_shown(large.betas)}"
        return f"{told} by {self.rule}, {large.updates:,} updates"


def check(definition: Definition) -> None:
    """Refuse a transfer that would fail once there is a best trial.

    Raises:
        ConfigError: it would, or there is nothing to transfer.
    """
    wanted, swept = definition.section.get("transfer") or [], [each.key for each in definition.space.parameters]
    lost = [key for key in map(key_of, wanted) if key in swept and key != _BATCH]
    if lost:
        message = f"gives {lost[0]} a value, which the sweep is there to find: leave it out of one of them"
        raise ConfigError([Mistake("sweep.transfer", "", message)])
    if wanted and definition.population() is not None:
        message = "a population ends in a schedule, not in a configuration that could be transferred: leave it out"
        raise ConfigError([Mistake("sweep.transfer", "", message)])
    predicted(definition, {each.key: each.domain.examples[0] for each in definition.space.parameters})


def predicted(definition: Definition, values: Mapping[str, Any]) -> Prediction | None:
    """What the sweep's `transfer` makes of a trial with these values; None where it has none.

    Raises:
        ConfigError: the large configuration is wrong, or its plan does not fit together.
    """
    wanted = [str(each) for each in definition.section.get("transfer") or []]
    if not wanted:
        return None
    trial = [*definition.overrides, *definition.space.overrides(values)]
    small = _settings(_composed(definition, trial), definition)
    config = _composed(definition, [*trial, *wanted], small.batch_size)
    return Prediction(config, config["scaling"]["_target_"].rpartition(".")[2], small, _settings(config, definition))


def _composed(definition: Definition, overrides: Sequence[str], reference: int | None = None) -> Mapping[str, Any]:
    """A configuration whose rule takes this reference batch where it names none.

    It is right as far as can be said here: it may be meant for a larger machine.
    """
    from gradwire.trainer.config import compose, validate

    allowed = [f"allow_targets=[{','.join(map(quoted, definition.allow_targets))}]"] if definition.allow_targets else []
    composed = compose([*overrides, *allowed], definition.config_dir)
    scaling = composed.config.get("scaling")
    if (
        reference is not None
        and isinstance(scaling, Mapping)
        and scaling.get("reference", reference) in (None, MISSING)
    ):
        composed = compose([*overrides, *allowed, f"scaling.reference={reference}"], definition.config_dir)
    return validate(composed, lambda config, allow: ()).config


def _settings(config: Mapping[str, Any], definition: Definition) -> Settings:
    from gradwire.trainer.plan_table import planned

    try:
        plan = planned(config, definition.allow_targets).plan
    except SchedulerError as error:
        raise ConfigError([Mistake("sweep.transfer", "", str(error))]) from error
    peak = plan.peak()
    return Settings(plan.largest_batch, peak.lr, peak.betas, plan.total_updates)


def _shown(betas: tuple[float, float] | None) -> str:
    return "none" if betas is None else f"({betas[0]:.4g}, {betas[1]:.6g})"
