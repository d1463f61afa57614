"""A configuration as YAML in which every key says what it means and where its value came from."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradwire.trainer.config.interpolation import literal
from gradwire.trainer.config.signatures import REQUIRED, Parameter
from gradwire.trainer.config.validation import Valid

_DEFAULT = "default"
_PLAIN = re.compile(
    r"[A-Za-z0-9/.](?:[\w/.%+@-]| (?=[\w]))*", re.ASCII
)  # what YAML takes without quotes, if it is text
_WIDEST = 60  # comments are aligned up to this column, and follow longer values directly


@dataclass(frozen=True)
class _Line:
    text: str
    origin: str
    meaning: str


def describe(valid: Valid) -> str:
    """The configuration as YAML with a comment on each line: where the value came from, and what it means.

    Arguments of components that nobody set are listed too, with their defaults. The text is itself a configuration.
    """
    lines = list(_section(valid.config, "", valid, 0))
    column = max((len(line.text) for line in lines if len(line.text) <= _WIDEST), default=0)
    origins = max((len(line.origin) for line in lines), default=0)
    return "".join(_commented(line, column, origins) for line in lines)


def _commented(line: _Line, column: int, origins: int) -> str:
    return f"{line.text:{column}}  # {line.origin:{origins}}  {line.meaning}".rstrip().rstrip("#").rstrip() + "\n"


def _section(section: Mapping[str, Any], key: str, valid: Valid, depth: int) -> Iterator[_Line]:
    for name, value in section.items():
        full = f"{key}.{name}" if key else name
        meaning = valid.fields[full].meaning if full in valid.fields else ""
        indent = "  " * depth
        if isinstance(value, Mapping) and value:
            yield _Line(f"{indent}{name}:", "", meaning)
            yield from _section(value, full, valid, depth + 1)
        else:
            origin = valid.origins.exact(full) or _DEFAULT
            yield _Line(f"{indent}{name}: {_scalar(value)}", origin, meaning)
    if key:
        for name, field in _unset(section, key, valid.fields).items():
            yield _Line(f"{'  ' * depth}{name}: {_scalar(field.default)}", _DEFAULT, field.meaning)


def _unset(section: Mapping[str, Any], key: str, fields: Mapping[str, Parameter]) -> Mapping[str, Parameter]:
    """The keys that could stand in this section and do not, as far as YAML can write their defaults."""
    return {
        field.name: field
        for full, field in fields.items()
        if full.rpartition(".")[0] == key and field.name not in section and _writable(field.default)
    }


def _writable(default: Any) -> bool:
    if isinstance(default, list | tuple):
        return all(_writable(item) for item in default)
    return default is not REQUIRED and (default is None or isinstance(default, bool | int | float | str))


def _scalar(value: Any) -> str:
    """A value on one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_scalar(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _number(value)


def _number(value: float) -> str:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"inf": ".inf", "-inf": "-.inf"}.get(str(value), ".nan")
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _text(value: str) -> str:
    from omegaconf._utils import get_yaml_loader
    from yaml import load  # type: ignore[import-untyped]

    if _PLAIN.fullmatch(value) and load(value, Loader=get_yaml_loader()) == value:
        return value
    return json.dumps(literal(value), ensure_ascii=False)
