"""Arguments of constructors against their annotations: one check for all, made before the constructor begins.

So a constructor that is decorated with `checked` looks at values only: what is annotated as an int is a whole number.
"""

import functools
import inspect
import math
import numbers
import typing
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Final, Literal, TypeVar

from gradwire.schedulers.duration import LARGEST, Duration
from gradwire.schedulers.errors import SchedulerError

_T = TypeVar("_T", bound=type)
_SAID: Final[Mapping[str, str]] = {
    "Duration": "a duration such as '500 updates'",
    "int": "a whole number",
    "float": "a finite number",
    "str": "text",
    "bool": "True or False",
    "NoneType": "None",
    "Schedule": "a schedule",
    "Coupled": "a coupling times the full batch, as in 512 * Seesaw(start=64)",
    "Plan": "a plan, Plan(lr=…, batch=…, run_length=…)",
}


def checked(error: type[SchedulerError]) -> Callable[[_T], _T]:
    """A class whose constructor refuses arguments of other types than it declares.

    An int is any whole number that 64 bits hold, NumPy's too; a float any finite number; none of them a bool. What
    is no duration is refused as `Duration.parse` does.

    Args:
        error: Raised with the argument's name, what was expected and what was found.
    """

    def decorate(cls: _T) -> _T:
        constructor = cls.__init__  # type: ignore[misc]
        signature = inspect.signature(constructor)

        @functools.cache
        def annotations() -> dict[str, Any]:  # when first used: all classes that are named are there then
            return typing.get_type_hints(constructor)

        @functools.wraps(constructor)
        def construct(self: Any, *positional: Any, **named: Any) -> None:
            def refuse(name: str, expected: str, value: object) -> SchedulerError:
                return error(f"{name} of {type(self).__name__} is {expected}; found {_shown(value)}", name)

            given = signature.bind(self, *positional, **named)
            for name, value in given.arguments.items():
                if name in annotations():
                    given.arguments[name] = _taken(name, value, annotations()[name], refuse)
            constructor(*given.args, **given.kwargs)

        cls.__init__ = construct  # type: ignore[misc]
        return cls

    return decorate


def is_whole(value: object) -> bool:
    """Whether it is a whole number, NumPy's included, that 64 bits hold."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and abs(int(value)) <= LARGEST


def is_finite(value: object) -> bool:
    """Whether it is a finite number, NumPy's included."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    return abs(int(value)) <= LARGEST if isinstance(value, numbers.Integral) else math.isfinite(value)


def _taken(name: str, value: Any, annotation: Any, refuse: Callable[[str, str, object], SchedulerError]) -> Any:
    """The argument as the constructor takes it: NumPy's numbers as Python's.

    Raises:
        SchedulerError: it is not of the declared type.
    """
    if _fits(value, annotation):
        return value.item() if isinstance(value, numbers.Number) and hasattr(value, "item") else value
    if Duration in _members(annotation) and int not in _members(annotation):
        return Duration.parse(value)  # which says what a duration is
    raise refuse(name, _say(annotation), value)


def _fits(value: Any, annotation: Any) -> bool:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (UnionType, typing.Union):
        return any(_fits(value, member) for member in inner)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in inner)
    if annotation is int:
        return is_whole(value)
    if annotation is float:
        return is_finite(value)
    if origin is tuple and Ellipsis not in inner:
        return isinstance(value, tuple | list) and len(value) == len(inner) and all(map(_fits, value, inner))
    if origin in (tuple, Sequence):
        items = [] if Duration in _members(inner[0]) else value  # durations are read, and refused, one by one
        return isinstance(value, list | tuple) and all(_fits(item, inner[0]) for item in items)
    return annotation is Any or isinstance(value, origin or annotation)


def _members(annotation: Any) -> tuple[Any, ...]:
    union = typing.get_origin(annotation) in (UnionType, typing.Union)
    return typing.get_args(annotation) if union else (annotation,)


def _say(annotation: Any) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (UnionType, typing.Union):
        named = [member for member in inner if not (member is str and Duration in inner)]
        return " or ".join(_say(member) for member in named)
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if origin is tuple and Ellipsis not in inner:
        return f"({', '.join(_say(member) for member in inner)})"
    if origin in (tuple, Sequence):
        return f"a list, each {_say(inner[0])}"
    name = getattr(origin or annotation, "__name__", str(annotation))
    return _SAID.get(name, f"a {name}")


def _shown(value: object) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
