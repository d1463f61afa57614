"""From a command to a sweep: composed, and checked as far as can be before anything runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.trainer.config.errors import ConfigError, Mistake
from gradwire.trainer.config.overrides import place
from gradwire.trainer.config.schema import SweepSection
from gradwire.trainer.config.sources import Sources
from gradwire.trainer.sweep.definition import Definition, fresh_name, of_sweep
from gradwire.trainer.sweep.objectives import objectives_of
from gradwire.trainer.sweep.parameters import Interval
from gradwire.trainer.sweep.population import unfit_for_generations
from gradwire.trainer.sweep.space import Space, key_of, read, split
from gradwire.trainer.sweep.storage import settled
from gradwire.trainer.sweep.transfer import check

if TYPE_CHECKING:
    from gradwire.trainer.config import Composed, Valid

_MOST = 64  # values of one parameter that are tried


def requested(overrides: Sequence[str], config_dir: Path | None) -> Definition:
    """The sweep that a command asks for.

    Every value of a choice, and the ends of intervals, are composed and checked as a run's configuration, beside the
    first values of the other parameters.

    Raises:
        ConfigError: there are mistakes; it holds all of them.
    """
    fixed, swept = split(overrides)
    from gradwire.trainer.config.composition import defaults_of

    base = _composed(fixed, config_dir)
    sources = Sources(folder=None if config_dir is None or not config_dir.is_dir() else config_dir)
    space, mistakes = read(swept, _listed(base, fixed), sources)
    valid = _checked(space, fixed, config_dir, mistakes)
    section = {**defaults_of(SweepSection), **valid.config["sweep"]}
    section["storage"] = settled(section["storage"])
    if faults := list(_misfits(section, space, valid)):
        raise ConfigError(faults)
    logger = valid.config["logger"].get("wandb")
    directory = Path(section["dir"])
    definition = Definition(
        directory=directory.resolve(),
        study=fresh_name(directory),
        section=section,
        space=space,
        overrides=tuple(text for text in fixed if not of_sweep(key_of(text)) and key_of(text) != "allow_targets"),
        config_dir=None if config_dir is None else str(config_dir.resolve()),
        cwd=Path.cwd(),
        name=valid.config["run"]["name"],
        seed=valid.config["run"]["seed"],
        wandb=logger is not None and logger.get("group") is None,
        allow_targets=valid.allow_targets,
    )
    check(definition)
    return definition


def _composed(overrides: Sequence[str], config_dir: Path | None) -> "Composed":
    from gradwire.trainer.config import compose

    chosen = any(text.startswith(("sweep=", "~sweep")) for text in overrides)
    return compose([*([] if chosen else ["sweep=default"]), *overrides], config_dir)


def _listed(base: "Composed", fixed: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """`sweep.space` with the place of each line; a key that an override gives one value is no longer swept."""
    section = base.config.get("sweep")
    space = section.get("space") if isinstance(section, Mapping) else None
    given = {key_of(text) for text in fixed}
    if not isinstance(space, Mapping):
        return {}
    return {
        key: (value, base.origins.of(f"sweep.space.{key}"))
        for key, value in space.items()
        if isinstance(key, str) and key not in given
    }


def _checked(space: Space, fixed: Sequence[str], config_dir: Path | None, mistakes: list[Mistake]) -> "Valid":
    """The configuration of the first trial; those of the others are right as well.

    Raises:
        ConfigError: some are not, or there were mistakes before.
    """
    from gradwire.trainer.config import validate

    first: Valid | None = None
    for values in _examples(space):
        try:
            valid = validate(_composed([*fixed, *space.overrides(values)], config_dir))
            first = first or valid
        except ConfigError as error:
            mistakes = [*mistakes, *(_traced(each, space, values) for each in error.mistakes)]
    if mistakes or first is None:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    return first


def _traced(mistake: Mistake, space: Space, values: Mapping[str, Any]) -> Mistake:
    """A mistake of a trial's override, told of what the user wrote in its place."""
    for each in space.parameters:
        if mistake.where == place(each.override(values[each.key])):
            suggestion = mistake.suggestion
            if isinstance(each.domain, Interval) and mistake.message.startswith("expected an integer"):
                suggestion = f"{each.name}={each.written.replace('interval', 'int(interval', 1)})"
            return replace(mistake, where=each.where, suggestion=suggestion)
    return mistake


def _examples(space: Space) -> Iterator[dict[str, Any]]:
    """The first values of all parameters, then each parameter's others."""
    first = {each.key: each.domain.examples[0] for each in space.parameters}
    yield first
    for each in space.parameters:
        for value in each.domain.examples[1:_MOST]:
            yield {**first, each.key: value}


def _misfits(section: Mapping[str, Any], space: Space, valid: "Valid") -> Iterator[Mistake]:
    """What does not go together in the `sweep` section."""
    from gradwire.trainer.config import instantiate

    def mistake(key: str, message: str, suggestion: str | None = None) -> Mistake:
        return Mistake(f"sweep.{key}", valid.origins.of(f"sweep.{key}"), message, suggestion)

    objectives = objectives_of(section)
    for name in ("sampler", "executor"):
        if section[name] is None:
            yield mistake(name, f"is missing: choose one with sweep/{name}=NAME")
    if section["sampler"] is not None:
        sampler = instantiate(section["sampler"], valid.allow_targets)
        reason = sampler.misfit(space, len(objectives))
        if reason is None and sampler.population() is not None:
            reason = unfit_for_generations(section, space, valid.config)
        if reason is not None:
            yield mistake("sampler", reason)
    if section["dir"] is None:
        yield mistake("dir", "is missing: the folder in which the sweep is kept", "sweep.dir=sweeps/first")
    if not objectives:
        yield mistake("objective", "names no metric: 'eval/loss', or a list of {metric: …}")
    if section["pruner"] is not None and len(objectives) > 1:
        yield mistake("pruner", "trials are ended early by one objective, and there are several: sweep/pruner=null")
    for index, each in enumerate(section["constraints"]):
        if each.get("at_most") is None and each.get("at_least") is None:
            yield mistake(f"constraints[{index}]", f"limits {each['metric']} in no way: give at_most or at_least")
    if section["seeds"] > 1 and any(each.key == "run.seed" for each in space.parameters):
        yield mistake("seeds", "averages over run.seed, which is swept as well: leave one of them out")
    if valid.config["run"]["stop_at"] is not None:
        yield Mistake("run.stop_at", valid.origins.of("run.stop_at"), "a trial's run goes to its end: leave it out")
    if valid.config["run"]["dir"] is not None:
        yield Mistake("run.dir", valid.origins.of("run.dir"), "each trial has a folder of its own, within sweep.dir")
