"""Plain values against the types that are declared for them, exactly: a bool is no integer, "12" is none either."""

import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, TypeVar, Union

from gradwire.trainer.config.names import nearest
from gradwire.trainer.config.range import HostSpan, Measured, Range

SEQUENCES = (list, Sequence, Iterable, Collection, set, frozenset)
MAPPINGS = (dict, Mapping)
_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "null", Path: "a path"}


@dataclass(frozen=True)
class Fault:
    """A wrong value or key, not yet traced to where it was written.

    Args:
        key: Dotted from the root.
        message: What is wrong.
        suggestion: The nearest right value.
        siblings: For an unknown key, the names that would be right there.
    """

    key: str
    message: str
    suggestion: str | None = None
    siblings: tuple[str, ...] | None = None


Checked = tuple[Any, list[Fault]]  # the value as its type wants it, and what is wrong with it


def plain(annotation: Any) -> Any:
    """The annotation without aliases and names for types."""
    while True:
        if isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif isinstance(annotation, TypeVar):
            annotation = annotation.__bound__ or Any
        else:
            return annotation


def is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (Union, types.UnionType)


def is_duration(annotation: Any) -> bool:
    return getattr(annotation, "__module__", "").startswith("gradwire.schedulers") and annotation.__name__ == "Duration"


def is_scalar(annotation: Any) -> bool:
    return annotation in _WORDS or annotation is None or is_duration(annotation)


def check_scalar(value: Any, annotation: Any, key: str) -> Checked:
    """`value` as an int, float, bool, str, null, path or duration."""
    if is_duration(annotation):
        return _check_duration(value, annotation, key)
    if annotation in (None, type(None)):
        return value, [] if value is None else [wrong(value, annotation, key)]
    if annotation is float and _is(value, int, float) and not math.isnan(value):
        return float(value), []
    if annotation is int and _is(value, float) and value.is_integer():
        return int(value), []
    if annotation is Path and _is(value, str):
        return value, []
    if _is(value, annotation) and not (_is(value, float) and math.isnan(value)):
        return value, []
    return value, [wrong(value, annotation, key)]


def _is(value: Any, *kinds: type) -> bool:
    return type(value) in kinds


def _check_duration(value: Any, annotation: Any, key: str) -> Checked:
    if not _is(value, str, int, float):  # a bare number is told which units there are
        return value, [wrong(value, annotation, key)]
    try:
        annotation.parse(value)
    except ValueError as error:
        return value, [Fault(key, str(error))]
    return value, []


def check_literal(value: Any, annotation: Any, key: str) -> Checked:
    """`value` as one of the values that a Literal lists."""
    choices = typing.get_args(annotation)
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value, []
    suggestion = nearest(str(value), [str(choice) for choice in choices])
    return value, [Fault(key, f"expected {say(annotation)}, found {found(value)}", suggestion)]


def check_limits(
    value: Any, limits: Iterable[Any], key: str, duration: Callable[[str], Any] | None = None
) -> list[Fault]:
    """What is wrong with a value of the right type, given the limits in its annotation."""
    complaints = []
    for limit in limits:
        if isinstance(limit, Range):
            values = value if isinstance(value, list) else [value]
            complaints += [limit.complaint(number) for number in values]
        elif isinstance(limit, HostSpan) and isinstance(value, str):
            complaints.append(limit.complaint(value))
        elif isinstance(limit, Measured) and isinstance(value, str) and duration is not None:
            complaints.append(limit.complaint(duration(value).unit))
    return [Fault(key, complaint) for complaint in complaints if complaint]


def wrong(value: Any, annotation: Any, key: str) -> Fault:
    """The fault of a value of another type than declared."""
    return Fault(key, f"expected {say(annotation)}, found {found(value)}", _rewritten(value, annotation))


def _rewritten(value: Any, annotation: Any) -> str | None:
    """A string that looks like the value meant: '12' for 12, 'ture' for true."""
    if not _is(value, str):
        return None
    if annotation is bool:
        return nearest(value, ("true", "false"))
    if annotation in (int, float):
        try:
            annotation(value)
        except ValueError:
            return None
        return f"{value} without quotes"
    return None


def found(value: Any) -> str:
    """A value in words, for a message."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f"the text {value!r}"
    if isinstance(value, Mapping):
        return f"the component {value['_target_']}" if "_target_" in value else "a section of keys"
    if isinstance(value, list):
        return f"a list of {len(value)} values"
    return f"{value}"


def _writable(members: tuple[Any, ...]) -> list[Any]:
    """The members of a union that are worth naming: no tensor beside a number, no bare text beside a duration."""
    durations = any(is_duration(member) for member in members)
    others = [member for member in members if not (durations and member is str)]
    named = [member for member in others if not getattr(member, "__module__", "").startswith("torch")]
    return named if any(member is not type(None) for member in named) else others


def say(annotation: Any) -> str:
    """A type in words, for a message."""
    annotation = plain(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation in _WORDS:
        return _WORDS[type(None) if annotation is None else annotation]
    if is_duration(annotation):
        return "a duration such as '500 updates'"
    if origin is Annotated:
        return say(arguments[0])
    if is_union(annotation):
        return " or ".join(dict.fromkeys(say(member) for member in _writable(arguments)))
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}" if len(arguments) > 1 else str(arguments[0])
    if origin is tuple:
        return (
            f"a list of {len(arguments)} values" if Ellipsis not in arguments else f"a list, each {say(arguments[0])}"
        )
    if origin in SEQUENCES or annotation in SEQUENCES:
        return f"a list, each {say(arguments[0])}" if arguments else "a list"
    if origin in MAPPINGS or annotation in MAPPINGS:
        return "a section of keys"
    if is_dataclass(annotation):
        return "a section of keys"
    return f"a component (_target_) that is a {getattr(annotation, '__name__', annotation)}"
