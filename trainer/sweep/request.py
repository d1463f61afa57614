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
from gradwire.trainer.sweep.misfits import check_stores, misfits
from gradwire.trainer.sweep.parameters import Interval
from gradwire.trainer.sweep.space import Space, key_of, read, readable, split
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
    mistakes = [*mistakes, *_twice(fixed, swept)]
    if not swept and not space.parameters and not all(map(readable, fixed)):
        mistakes = []  # what cannot be read may have been the space, and is told below
    valid = _checked(space, fixed, config_dir, mistakes)
    section = {**defaults_of(SweepSection), **valid.config["sweep"]}
    section["storage"] = settled(section["storage"])
    if faults := list(misfits(section, space, valid)):
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
    check_stores(definition, valid)
    check(definition)
    return definition


def _twice(fixed: Sequence[str], swept: Sequence[str]) -> Iterator[Mistake]:
    given = {key_of(text) for text in fixed}
    for text in swept:
        if key_of(text) in given:
            yield Mistake(key_of(text), place(text), "is given one value by another override: leave one of them out")


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
