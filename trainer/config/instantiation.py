"""The one place that turns `_target_` nodes into objects; everything passes the gate and the checks again here."""

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from gradwire.trainer.config.builds import Builds
from gradwire.trainer.config.checker import TARGET, Checker
from gradwire.trainer.config.errors import ConfigError, Mistake
from gradwire.trainer.config.signatures import parameters
from gradwire.trainer.config.targets import resolve_target
from gradwire.trainer.config.values import MAPPINGS, SEQUENCES, is_duration, is_union, plain


def instantiate(node: Mapping[str, Any], allow_targets: Iterable[str] = (), **supplied: Any) -> Any:
    """The object that a node names, built with the node's arguments and those supplied; nodes within it likewise.

    Args:
        node: `_target_` and its keyword arguments, without keys of the section around it.
        allow_targets: Packages that the user allows targets from.
        supplied: Arguments that the program gives; each is passed only where the target's signature asks for it.

    Raises:
        ConfigError: the node has mistakes.
        Exception: whatever the target's constructor raises.
    """
    allow_targets = tuple(allow_targets)
    checked, faults = Checker(allow_targets).component(node, "", Builds(supplied=tuple(supplied)))
    if faults:
        raise ConfigError([Mistake(fault.key, "", fault.message, fault.suggestion) for fault in faults])
    return _build(checked, allow_targets, supplied)


def _build(node: Mapping[str, Any], allow_targets: tuple[str, ...], supplied: Mapping[str, Any]) -> Any:
    target = resolve_target(node[TARGET], allow_targets)
    declared = parameters(target)
    arguments = {
        name: _value(value, declared[name].annotation, allow_targets) for name, value in node.items() if name != TARGET
    }
    return target(**arguments, **{name: value for name, value in supplied.items() if name in declared})


def _value(value: Any, annotation: Any, allow_targets: tuple[str, ...]) -> Any:
    """A checked value as the object that its annotation declares."""
    if isinstance(value, Mapping) and TARGET in value:
        return _build(value, allow_targets, {})
    members = list(_members(annotation))
    if isinstance(value, Mapping):
        return _mapping(value, members, allow_targets)
    if isinstance(value, list):
        return _list(value, members, allow_targets)
    duration = next((member for member in members if is_duration(member)), None)
    if isinstance(value, str) and duration is not None and str not in members:
        return duration.parse(value)
    return value


def _members(annotation: Any) -> Iterable[Any]:
    """The types that an annotation allows, without Annotated and Union around them."""
    annotation = plain(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        yield from _members(typing.get_args(annotation)[0])
    elif is_union(annotation):
        for member in typing.get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _mapping(value: Mapping[str, Any], members: list[Any], allow_targets: tuple[str, ...]) -> Any:
    schema: Any = next((member for member in members if dataclasses.is_dataclass(member)), None)
    if schema is not None:
        hints = typing.get_type_hints(schema, include_extras=True)
        return schema(**{name: _value(item, hints[name], allow_targets) for name, item in value.items()})
    declared = [typing.get_args(member) for member in members if typing.get_origin(member) in MAPPINGS]
    inner = declared[0][1] if declared else Any
    return {name: _value(item, inner, allow_targets) for name, item in value.items()}


def _list(value: list[Any], members: list[Any], allow_targets: tuple[str, ...]) -> Any:
    for member in members:
        origin, inner = typing.get_origin(member) or member, typing.get_args(member)
        if origin is tuple and inner and Ellipsis not in inner:
            return tuple(_value(item, each, allow_targets) for item, each in zip(value, inner, strict=True))
        if origin is tuple or origin in SEQUENCES:
            items = [_value(item, inner[0] if inner else Any, allow_targets) for item in value]
            return origin(items) if origin in (tuple, set, frozenset) else items
    return [_value(item, Any, allow_targets) for item in value]
