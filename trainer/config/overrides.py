"""Overrides in Hydra's grammar, each read on its own: what can be applied, and a mistake for each that cannot."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gradwire.trainer.config.errors import Mistake
from gradwire.trainer.config.interpolation import leaves
from gradwire.trainer.config.names import nearest, nearest_key
from gradwire.trainer.config.sources import Origins, Sources

_FEW = 15  # options that are listed in a message


@dataclass(frozen=True)
class Override:
    """An override that could be read.

    Args:
        text: As the user wrote it.
        kind: Chooses an option of a config group, sets a value, or deletes one.
        key: The key or group.
        value: The value, plain.
    """

    text: str
    kind: Literal["group", "value", "delete"]
    key: str
    value: Any

    @property
    def place(self) -> str:
        return place(self.text)

    @property
    def for_hydra(self) -> str:
        """How Hydra is told to choose this option; it has no `group=null`, so that becomes a deletion."""
        return f"~{self.text.lstrip('+~').partition('=')[0]}" if self.value is None else self.text


def place(text: str) -> str:
    """How messages name an override."""
    return f"override '{text}'"


def read_overrides(texts: Sequence[str], sources: Sources) -> tuple[list[Override], list[Mistake]]:
    """All overrides that can be applied, in order, and what is wrong with the others."""
    outcomes = [_read(text, sources) for text in texts]
    overrides = [outcome for outcome in outcomes if isinstance(outcome, Override)]
    return overrides, [outcome for outcome in outcomes if isinstance(outcome, Mistake)]


def _read(text: str, sources: Sources) -> Override | Mistake:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException as error:
        return Mistake("", place(text), _syntax(text, error))
    except Exception as error:  # the grammar's own functions raise what they like
        return Mistake("", place(text), f"cannot be read: {error}")
    key = parsed.key_or_group
    if not key:
        return Mistake("", place(text), "expected KEY=VALUE")
    if parsed.is_sweep_override():
        message = f"gives several values, which only a sweep takes; one list is written {key}=[…], a text {key}='…'"
        return Mistake(key, place(text), message)
    if parsed.is_hydra_override() or key == "hydra":
        return Mistake(key, place(text), "Hydra's own settings have no effect here: leave it out")
    if sources.is_group(key) and not isinstance(parsed.value(), dict):
        return _group(text, parsed, sources)
    if parsed.package is not None or "/" in key:
        message = f"there is no config group {key}; there are {', '.join(sources.groups())}"
        return Mistake(key, place(text), message, nearest(key, sources.groups()))
    return Override(text, "delete" if parsed.is_delete() else "value", key, parsed.value())


def _group(text: str, parsed: Any, sources: Sources) -> Override | Mistake:
    group, value, left = parsed.key_or_group, parsed.value(), text.partition("=")[0]
    options = sources.options(group)
    if parsed.is_delete():
        return Override(text, "group", group, None)
    names = value if isinstance(value, list) else [value]
    wrong = [name for name in names if name is not None and name not in options]
    if wrong:
        many = ", ".join(options) if len(options) <= _FEW else f"{', '.join(options[:_FEW])}, …"
        if isinstance(wrong[0], str):
            message, suggestion = f"there is no {group} called {wrong[0]}", nearest(wrong[0], options)
            return Mistake(group, place(text), f"{message}; there are {many}", suggestion and f"{left}={suggestion}")
        message = f"chooses one of {many}; a single key of it is set as {group}.KEY={wrong[0]}"
        meant = _MEANT.get(group)
        return Mistake(group, place(text), message, meant and f"{meant}={wrong[0]}")
    return Override(text, "group", group, value)


_MEANT = {"lr": "optimizer.lr", "batch": "batch.size"}  # the number that somebody who writes lr=3e-4 has in mind


def _syntax(text: str, error: Exception) -> str:
    if "=" not in text and not text.startswith("~"):
        return "expected KEY=VALUE"
    reason = str(error).splitlines()[0]
    key, _, value = text.partition("=")
    quoted = f"; text with special characters is quoted: '{key}=\"{value}\"'" if '"' not in value else ""
    return f"cannot be read ({reason}){quoted}"


class _NothingToDeleteError(Exception):
    """The key of a deletion is not there."""


def apply_values(config: Any, overrides: Sequence[Override], origins: Origins) -> list[Mistake]:
    """Set or delete values in OmegaConf's tree; a key that is not there yet is made, so that validation names it."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    mistakes = []
    for override in overrides:
        try:
            if override.kind == "delete":
                _delete(config, override.key)
            else:
                OmegaConf.update(config, override.key, override.value, merge=True, force_add=True)
        except _NothingToDeleteError:
            known = [key for key, _ in leaves(OmegaConf.to_container(config, resolve=False))]
            near = nearest_key(override.key, [], known)
            mistakes.append(
                Mistake(override.key, override.place, "there is no such key to delete", near and f"~{near}")
            )
        except (OmegaConfBaseException, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            mistakes.append(Mistake(override.key, override.place, f"cannot be applied: {str(error).splitlines()[0]}"))
        else:
            _record(origins, dotted(override.key), override.value, override.place)
    return mistakes


def _record(origins: Origins, key: str, value: Any, origin: str) -> None:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            _record(origins, f"{key}.{name}", item, origin)
    else:
        origins.record(key, origin)


def dotted(key: str) -> str:
    """An override's key in our own notation: `groups.0.lr` is `groups[0].lr`."""
    return re.sub(r"\.(\d+)(?=[.\[]|$)", r"[\1]", key)


def _delete(config: Any, key: str) -> None:
    from omegaconf import OmegaConf, open_dict

    parent, _, name = key.rpartition(".")
    section = OmegaConf.select(config, parent) if parent else config
    if section is None or name not in section:
        raise _NothingToDeleteError(key)
    with open_dict(section):
        del section[name]
