"""What does not go together in a sweep's configuration, each value alone being right."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.trainer.config.errors import ConfigError, Mistake
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.objectives import EVALUATION, constraints_of, objectives_of
from gradwire.trainer.sweep.population import unfit_for_generations
from gradwire.trainer.sweep.pruners import Pruner
from gradwire.trainer.sweep.samplers import Sampler
from gradwire.trainer.sweep.space import Space

if TYPE_CHECKING:
    from gradwire.trainer.config import Valid


def misfits(section: Mapping[str, Any], space: Space, valid: "Valid") -> Iterator[Mistake]:
    """What is wrong with the `sweep` section, and with what all trials have in common.

    Args:
        section: The `sweep` section, checked.
        space: What is searched.
        valid: The configuration of the first trial.
    """
    for key, message in _faults(section, space, valid):
        yield Mistake(key, valid.origins.of(key), message, _MEANT.get(key))


_MEANT = {"sweep.dir": "sweep.dir=sweeps/first"}


def _faults(section: Mapping[str, Any], space: Space, valid: "Valid") -> Iterator[tuple[str, str]]:
    for name in ("sampler", "executor"):
        if section[name] is None:
            yield f"sweep.{name}", f"is missing: choose one with sweep/{name}=NAME"
    if not section["dir"]:
        yield "sweep.dir", "is missing: the folder in which the sweep is kept"
    yield from _metrics(section, valid.config)
    yield from _components(section, space, valid)
    if section["seeds"] > 1 and any(each.key == "run.seed" for each in space.parameters):
        yield "sweep.seeds", "averages over run.seed, which is swept as well: leave one of them out"
    if valid.config["run"]["stop_at"] is not None:
        yield "run.stop_at", "a trial's run goes to its end: leave it out"
    if valid.config["run"]["dir"] is not None:
        yield "run.dir", "each trial has a folder of its own, within sweep.dir"


def _metrics(section: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    objectives, constraints = objectives_of(section), constraints_of(section)
    if not objectives or not all(each.metric for each in objectives):
        yield "sweep.objective", "names no metric: 'eval/loss', or a list of {metric: …}"
    for key, named in (("objective", [each.metric for each in objectives]), ("constraints", _named(constraints))):
        for metric in sorted({each for each in named if named.count(each) > 1}):
            yield f"sweep.{key}", f"names {metric} twice: once is enough"
        unmeasured = [metric for metric in named if metric.startswith(EVALUATION)]
        if unmeasured and config["evaluation"]["every"] is None:
            told = "is what evaluations measure, and evaluation.every=null has none: give it, or name another metric"
            yield f"sweep.{key}", f"{unmeasured[0]} {told}"
    for index, each in enumerate(constraints):
        if each.at_most is None and each.at_least is None:
            yield f"sweep.constraints[{index}]", f"limits {each.metric} in no way: give at_most or at_least"
        elif each.at_most is not None and each.at_least is not None and each.at_least > each.at_most:
            yield (
                f"sweep.constraints[{index}]",
                f"no {each.metric} is at least {each.at_least} and at most {each.at_most}",
            )


def _named(constraints: Sequence[Any]) -> list[str]:
    return [each.metric for each in constraints]


def _components(section: Mapping[str, Any], space: Space, valid: "Valid") -> Iterator[tuple[str, str]]:
    from gradwire.trainer.config import instantiate

    objectives = objectives_of(section)
    if section["sampler"] is not None:
        sampler: Sampler = instantiate(section["sampler"], valid.allow_targets)
        population = sampler.population()
        reason = sampler.misfit(space, len(objectives))
        if reason is None and population is not None:
            reason = unfit_for_generations(section, space, valid.config) or population.unfit(section["trials"])
            cuts = [age / population.generations for age in range(1, population.generations)]
            reason = reason or _too_short(cuts, "generations end", valid)
        if reason is not None:
            yield "sweep.sampler", reason
    if section["pruner"] is None:
        return
    if len(objectives) > 1:
        yield "sweep.pruner", "trials are ended early by one objective, and there are several: sweep/pruner=null"
    pruner: Pruner = instantiate(section["pruner"], valid.allow_targets)
    ladder = pruner.ladder()
    if (reason := pruner.misfit()) is not None or ladder is None:
        yield from [("sweep.pruner", reason)] if reason is not None else []
    elif (reason := _too_short(ladder.rungs(0), "rungs lie", valid)) is not None:
        yield "sweep.pruner", reason


def _too_short(cuts: Sequence[float], what: str, valid: "Valid") -> str | None:
    """What speaks against parts of a run that end at these shares of it: one would have no update."""
    from gradwire.schedulers import Clock
    from gradwire.trainer.plan_table import planned

    plan = planned(valid.config, valid.allow_targets).plan
    if plan.measures:
        return None
    samples = [plan.to_samples(f"{100 * cut:.12g}%") for cut in cuts]
    # the update within which a run has seen so many samples
    ends = [plan.total_updates - plan.updates_left(Clock(samples=each - 1)) + 1 if each else 0 for each in samples]
    if all(before < after for before, after in pairwise([0, *ends, plan.total_updates])):
        return None
    told = ", ".join(map(str, ends[:8])) + (", …" if len(ends) > 8 else "")
    return (
        f"a run of {plan.total_updates} updates is too short: its {what} at updates {told}, and between two of them "
        "has to be one at least. Take fewer, or a longer run.length"
    )


def check_stores(definition: Definition, valid: "Valid") -> None:
    """Refuse a sweep of which several runs would save into one store.

    Raises:
        ConfigError: they would.
    """
    from gradwire.checkpoint.memory import MEMORY
    from gradwire.trainer.config import compose

    def places(trial: int, run: int) -> Mapping[str, str]:
        values = {each.key: each.domain.examples[0] for each in definition.space.parameters}
        overrides = definition.overrides_of(definition.trial(trial), values, run)
        folder = None if definition.config_dir is None else Path(definition.config_dir)
        checkpoint = compose(overrides, folder).config["checkpoint"]
        tiers = {f"checkpoint.tiers[{tier}]": place for tier, place in enumerate(checkpoint["tiers"])}
        found = {"checkpoint.url": checkpoint["url"], **tiers}
        return {key: place for key, place in found.items() if place not in (None, MEMORY)}

    checkpoint = valid.config["checkpoint"]
    if checkpoint["url"] is None and not checkpoint["tiers"]:
        return
    runs = [(0, 0), (1, 0), *([(0, 1)] if definition.seeds > 1 else [])]
    found = [places(*run) for run in runs]
    shared = {key: place for key, place in found[0].items() if place in [each.get(key) for each in found[1:]]}
    if shared:
        raise ConfigError([Mistake(key, valid.origins.of(key), _shared(place)) for key, place in shared.items()])


def _shared(place: str) -> str:
    own = f"{place.rstrip('/')}/${{run.name}}"
    return (
        f"is {place} for several runs, and each needs a store of its own: leave it out, which keeps checkpoints in the "
        f"trials' folders, or name a place of this sweep alone with the run's name in it, such as '{own}'"
    )
