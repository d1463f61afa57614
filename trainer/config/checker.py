"""Walks a configuration beside the types that describe it: dataclasses for sections, signatures for components."""

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from gradwire.trainer.config.builds import Builds
from gradwire.trainer.config.errors import TargetError
from gradwire.trainer.config.fields import fields_of, is_section
from gradwire.trainer.config.interpolation import MISSING, UNRESOLVED
from gradwire.trainer.config.kinds import conforms, load_base, protocol_methods
from gradwire.trainer.config.signatures import REQUIRED, Parameter, parameters
from gradwire.trainer.config.targets import resolve_target
from gradwire.trainer.config.values import (
    MAPPINGS,
    SEQUENCES,
    Checked,
    Fault,
    check_limits,
    check_literal,
    check_scalar,
    is_duration,
    is_scalar,
    is_union,
    plain,
    say,
    wrong,
)

TARGET = "_target_"


class Checker:
    """Checks a configuration; afterwards knows every key that is right in it and what each means.

    Args:
        allow_targets: Packages beyond gradwire and torch that targets may name.
    """

    def __init__(self, allow_targets: Iterable[str] = ()) -> None:
        self.fields: dict[str, Parameter] = {}
        self._allow_targets = tuple(allow_targets)

    def section(self, value: Any, schema: type, key: str = "") -> Checked:
        """`value` as the section that the dataclass `schema` describes."""
        if not isinstance(value, Mapping):
            return value, [wrong(value, schema, key)]
        declared = fields_of(schema)
        inline = _inline(declared.values())
        if inline is None:
            return self._keys(value, declared, key)
        own = {name: field for name, field in declared.items() if name != inline.name}
        return self._component(value, key, _builds(inline.annotation), own)

    def value(self, value: Any, annotation: Any, key: str) -> Checked:
        """`value` as whatever `annotation` says."""
        annotation = plain(annotation)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if value is UNRESOLVED:
            return value, []
        if value == MISSING:
            return value, [Fault(key, f"has no value yet: expected {say(annotation)}")]
        if origin is Annotated:
            return self._annotated(value, arguments[0], arguments[1:], key)
        if is_union(annotation):
            return self._union(value, annotation, arguments, key)
        if origin is Literal:
            return check_literal(value, annotation, key)
        if is_scalar(annotation):
            return check_scalar(value, annotation, key)
        return self._container(value, annotation, origin, arguments, key)

    def _container(self, value: Any, annotation: Any, origin: Any, arguments: tuple[Any, ...], key: str) -> Checked:
        if annotation in (Any, object, REQUIRED):
            return self._anything(value, key)
        if annotation is tuple or origin is tuple:
            return self._tuple(value, annotation, arguments, key)
        if annotation in SEQUENCES or origin in SEQUENCES:
            return self._list(value, annotation, arguments[0] if arguments else Any, key)
        if annotation in MAPPINGS or origin in MAPPINGS:
            return self._mapping(value, annotation, arguments[1] if arguments else Any, key)
        if not isinstance(value, Mapping):
            return value, [wrong(value, annotation, key)]
        if is_section(annotation):
            return self.section(value, annotation, key)
        if dataclasses.is_dataclass(annotation) and TARGET not in value:
            return self._keys(value, parameters(typing.cast(type, annotation)), key)
        return self._component(value, key, Builds(), {}, annotation)

    def _anything(self, value: Any, key: str) -> Checked:
        if isinstance(value, Mapping):
            return (
                self._component(value, key, Builds(), {}) if TARGET in value else self._mapping(value, dict, Any, key)
            )
        return self._list(value, list, Any, key) if isinstance(value, list) else (value, [])

    def _annotated(self, value: Any, annotation: Any, marks: tuple[Any, ...], key: str) -> Checked:
        builds = next((mark for mark in marks if isinstance(mark, Builds)), None)
        if builds is not None:
            return self._component(value, key, builds, {})
        value, faults = self.value(value, annotation, key)
        parse = annotation.parse if is_duration(annotation) else None
        return value, faults or check_limits(value, marks, key, parse)

    def _union(self, value: Any, annotation: Any, members: tuple[Any, ...], key: str) -> Checked:
        if any(is_duration(member) for member in members):
            members = tuple(member for member in members if member is not str)
        outcomes = [self.value(value, member, key) for member in members]
        right = [outcome for outcome in outcomes if not outcome[1]]
        if right:
            return next((outcome for outcome in right if type(outcome[0]) is type(value)), right[0])
        return value, _closest_faults(value, annotation, outcomes, key)

    def _tuple(self, value: Any, annotation: Any, members: tuple[Any, ...], key: str) -> Checked:
        if not members or Ellipsis in members:
            return self._list(value, annotation, members[0] if members else Any, key)
        if not isinstance(value, list) or len(value) != len(members):
            return value, [wrong(value, annotation, key)]
        return _gathered([self.value(item, members[i], f"{key}[{i}]") for i, item in enumerate(value)])

    def _list(self, value: Any, annotation: Any, member: Any, key: str) -> Checked:
        if not isinstance(value, list):
            return value, [wrong(value, annotation, key)]
        return _gathered([self.value(item, member, f"{key}[{i}]") for i, item in enumerate(value)])

    def _mapping(self, value: Any, annotation: Any, member: Any, key: str) -> Checked:
        if not isinstance(value, Mapping):
            return value, [wrong(value, annotation, key)]
        checked = {name: self.value(item, member, _join(key, name)) for name, item in value.items()}
        for name in value:
            self.fields.setdefault(_join(key, name), Parameter(str(name), member, REQUIRED))
        faults = [fault for _, faults in checked.values() for fault in faults]
        faults += [
            Fault(_join(key, name), f"a key is text, found {name}") for name in value if not isinstance(name, str)
        ]
        return {name: item for name, (item, _) in checked.items()}, faults

    def component(self, node: Any, key: str, builds: Builds) -> Checked:
        """`node` as a `_target_` with its arguments."""
        return self._component(node, key, builds, {})

    def _component(
        self, node: Any, key: str, builds: Builds, own: Mapping[str, Parameter], annotation: Any = None
    ) -> Checked:
        """`node` as a `_target_` with its arguments, beside which the keys of `own` may stand."""
        base = annotation if annotation is not None else load_base(builds.base) if builds.base else object
        if not isinstance(node, Mapping):
            place = builds.group if builds.group.replace("/", ".") == key else f"{builds.group}@{key}"
            option = f"{place}={node}" if builds.group and isinstance(node, str) else None
            return node, [dataclasses.replace(wrong(node, base, key), suggestion=option)]
        if TARGET not in node:
            return self._without_target(node, key, own)
        try:
            target = resolve_target(node[TARGET], self._allow_targets)
            signature = parameters(target)
        except TargetError as error:
            return node, [Fault(_join(key, TARGET), error.message, error.suggestion)]
        if not conforms(target, base):
            return node, [Fault(_join(key, TARGET), _misfit(target, base))]
        asked = {name: parameter for name, parameter in signature.items() if name not in builds.supplied}
        return self._keys(node, {TARGET: _target_field(target), **asked, **own}, key, builds.supplied)

    def _without_target(self, node: Mapping[str, Any], key: str, own: Mapping[str, Parameter]) -> Checked:
        given = {name: item for name, item in node.items() if name in own}
        _, faults = self._keys(given, own, key)
        message = f"names no component: choose one with {key}=NAME (a config group) or write {key}._target_"
        return node, [Fault(key, message), *faults]

    def _keys(
        self, node: Mapping[str, Any], declared: Mapping[str, Parameter], key: str, supplied: tuple[str, ...] = ()
    ) -> Checked:
        faults, checked = [], {}
        self.fields |= {_join(key, name): parameter for name, parameter in declared.items()}
        for name, item in node.items():
            if name in supplied:
                faults.append(Fault(_join(key, name), "is given by gradwire itself: leave it out"))
            elif name not in declared:
                faults.append(Fault(_join(key, name), "no such key", siblings=tuple(declared)))
            else:
                checked[name], wrongs = self.value(item, declared[name].annotation, _join(key, name))
                faults += wrongs
        for name, parameter in declared.items():
            if name not in node and parameter.default is REQUIRED:
                faults.append(Fault(_join(key, name), f"is missing: expected {say(parameter.annotation)}"))
        return {name: checked[name] for name in declared if name in checked}, faults


def _builds(annotation: Any) -> Builds:
    marks: Iterable[Any] = typing.get_args(annotation)
    return next((mark for mark in marks if isinstance(mark, Builds)), Builds())


def _inline(declared: Iterable[Parameter]) -> Parameter | None:
    return next((field for field in declared if _builds(field.annotation).inline), None)


def _target_field(target: Callable[..., Any]) -> Parameter:
    text = (getattr(target, "__doc__", None) or "").strip().partition("\n")[0].rstrip(".")
    return Parameter(TARGET, str, REQUIRED, text)


def _misfit(target: Any, base: Any) -> str:
    lacking = [name for name in protocol_methods(base) if not hasattr(target, name)] if isinstance(base, type) else []
    reason = f" (it has no {', '.join(lacking)})" if lacking else ""
    names = [getattr(member, "__name__", str(member)) for member in getattr(base, "__args__", [base])]
    return f"{target.__module__}.{target.__qualname__} is not a {' or '.join(names)}{reason}"


def _closest_faults(value: Any, annotation: Any, outcomes: list[Checked], key: str) -> list[Fault]:
    """Of a union's outcomes the faults that say most: those inside a value of the right shape, else of the type."""
    inner = [faults for _, faults in outcomes if not any(fault.message.startswith("expected") for fault in faults)]
    deeper = [faults for _, faults in outcomes if all(fault.key != key for fault in faults)]
    if inner or deeper:
        return (inner or deeper)[0]
    suggestion = next((fault.suggestion for _, faults in outcomes for fault in faults if fault.suggestion), None)
    return [dataclasses.replace(wrong(value, annotation, key), suggestion=suggestion)]


def _gathered(checked: list[Checked]) -> Checked:
    return [item for item, _ in checked], [fault for _, faults in checked for fault in faults]


def _join(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)
