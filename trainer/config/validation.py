"""Everything that can be wrong with a configuration, found before any worker starts and reported together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.trainer.config.checker import Checker
from gradwire.trainer.config.composition import Composed
from gradwire.trainer.config.deepspeed import with_settings
from gradwire.trainer.config.errors import ConfigError, Mistake
from gradwire.trainer.config.interpolation import leaves, literal
from gradwire.trainer.config.names import nearest_key
from gradwire.trainer.config.schema import Root
from gradwire.trainer.config.signatures import Parameter
from gradwire.trainer.config.sources import Origins
from gradwire.trainer.config.values import Fault

Contradictions = Callable[[Mapping[str, Any], tuple[str, ...]], Iterable[Fault]]


@dataclass(frozen=True)
class Valid:
    """A configuration that can be used.

    Args:
        config: Plain dicts and lists; values have the types that are declared for them (durations stay text).
        origins: Where each key was written.
        fields: Every key that the configuration could have, with type, default and meaning.
        allow_targets: Packages that the user allows targets from.
        notes: What the user should know.
    """

    config: dict[str, Any]
    origins: Origins
    fields: Mapping[str, Parameter]
    allow_targets: tuple[str, ...]
    notes: tuple[str, ...]

    def write(self, path: str | Path) -> None:
        """Write it as YAML, in the order of the root's sections."""
        Path(path).write_text(to_yaml(self.config), encoding="utf-8")


def validate(composed: Composed, contradictions: Contradictions | None = None) -> Valid:
    """Check every key and value and, where those are right, that they go together.

    Args:
        composed: What `compose` or `load_resolved` gave.
        contradictions: Finds values that are right alone and wrong together; by default on this machine's devices.

    Raises:
        ConfigError: there are mistakes; it holds all of them.
    """
    if not composed.complete:
        raise ConfigError(composed.mistakes)
    checker = Checker(composed.allow_targets)
    config, faults = checker.section(composed.config, Root)
    wrong = {fault.key for fault in faults}
    original = [fault for fault in faults if composed.links.get(fault.key) not in wrong]
    traced = [mistake for fault in original for mistake in _traced(fault, composed, checker.fields)]
    mistakes = [*composed.mistakes, *traced]
    if not faults and not composed.mistakes:
        if contradictions is None:
            from gradwire.trainer.config.contradictions import contradictions as on_this_machine

            contradictions = on_this_machine
        found = contradictions(config, composed.allow_targets)
        mistakes += [mistake for fault in found for mistake in _traced(fault, composed, checker.fields)]
    if mistakes:
        raise ConfigError(_distinct(mistakes))
    from gradwire.trainer.config.advice import advice

    notes = (*composed.notes, *advice(config, composed.allow_targets))
    config = with_settings(config)
    ordered = {name: config[name] for name in Root.__dataclass_fields__ if name in config}
    return Valid(ordered, composed.origins, checker.fields, composed.allow_targets, notes)


def _traced(fault: Fault, composed: Composed, fields: Mapping[str, Parameter]) -> Iterable[Mistake]:
    """A fault with the place where its key was written; an unknown section is a mistake for each place."""
    if fault.siblings is None:
        return [Mistake(fault.key, composed.origins.of(fault.key), fault.message, fault.suggestion)]
    written = [key for key, _ in leaves(composed.config) if key == fault.key or key.startswith(f"{fault.key}.")]
    places = {composed.origins.exact(key): key for key in reversed(written)}
    overrides = [key for place, key in places.items() if place.startswith("override ")]
    keys = sorted(overrides, key=written.index)
    if any(place and not place.startswith("override ") for place in places) or not keys:
        keys.append(fault.key)
    return [Mistake(key, composed.origins.of(key), fault.message, _mended(key, fault, fields)) for key in keys]


def _mended(key: str, fault: Fault, fields: Mapping[str, Parameter]) -> str | None:
    """The right key for an unknown one: its wrong part mended, then what is below that."""
    right = nearest_key(fault.key, fault.siblings or (), fields)
    rest = key.removeprefix(fault.key).lstrip(".")
    if not rest:
        return right
    parts = [field.rpartition(".")[2] for field in fields if right and field.rpartition(".")[0] == right]
    return nearest_key(f"{right}.{rest}" if right else key, parts, fields)


def _distinct(mistakes: Sequence[Mistake]) -> list[Mistake]:
    return list(dict.fromkeys(mistakes))


def to_yaml(config: Mapping[str, Any]) -> str:
    """A plain tree as YAML text that reads back as it was, with OmegaConf's loader and others."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(literal(dict(config))), resolve=True)
