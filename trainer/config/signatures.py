"""What a target can be given: the keyword arguments of its signature, with types, defaults and meanings."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradwire.trainer.config.errors import TargetError

REQUIRED = inspect.Parameter.empty
_ENTRY = re.compile(r"^(\s*)\*{0,2}(\w+)\s*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*:\s*(.*)$")
_LONG = 140  # characters from which a meaning is cut after its first sentence


@dataclass(frozen=True)
class Parameter:
    """A keyword argument of a target, or a field of a section.

    Args:
        name: Its key.
        annotation: Its type; Any where none is declared.
        default: Its default; `REQUIRED` where there is none.
        meaning: What the documentation says about it.
    """

    name: str
    annotation: Any
    default: Any
    meaning: str = ""


def parameters(target: Callable[..., Any]) -> dict[str, Parameter]:
    """The keyword arguments of a class or function, by name.

    Raises:
        TargetError: the signature cannot be read, is hidden behind `**kwargs`, or takes what has no name.
    """
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError) as error:
        raise TargetError(f"the signature of {_name(target)} cannot be read: {error}") from error
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            raise TargetError(
                f"{_name(target)} hides its arguments behind **{parameter.name}, so they cannot be checked: write a "
                "class with explicit keyword arguments around it"
            )
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise TargetError(f"{_name(target)} takes arguments without names ({parameter}): write a class around it")
    hints, meanings = annotations_of(target), documented(target, signature.parameters)
    return {
        name: Parameter(name, hints.get(name, Any), parameter.default, meanings.get(name, ""))
        for name, parameter in signature.parameters.items()
    }


def annotations_of(target: Callable[..., Any]) -> dict[str, Any]:
    """The evaluated annotations of a target's arguments; those that cannot be evaluated are left out."""
    function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    function = inspect.unwrap(function)
    raw = getattr(function, "__annotations__", {})
    scope = getattr(function, "__globals__", {})
    evaluated: dict[str, Any] = {}
    for name, annotation in raw.items():
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            evaluated |= typing.get_type_hints(holder, scope, include_extras=True)
        except Exception:  # a name that only type checkers see: the argument counts as undeclared
            continue
    return evaluated


def documented(target: Any, names: Iterable[str]) -> Mapping[str, str]:
    """The meanings of arguments from the `Args:` of a class's docstring, or else of its constructor's."""
    found: dict[str, str] = {}
    for holder in (target, getattr(target, "__init__", None)):
        text = getattr(holder, "__doc__", None)
        if text:
            found = dict(_entries(text, set(names))) | found
    return found


def _entries(text: str, names: set[str]) -> Iterable[tuple[str, str]]:
    lines = inspect.cleandoc(text).splitlines()
    for start, line in enumerate(lines):
        match = _ENTRY.match(line)
        if match is None or match[2] not in names or not match[1]:
            continue
        words = [match[3]]
        for following in lines[start + 1 :]:
            if not following.strip() or len(following) - len(following.lstrip()) <= len(match[1]):
                break
            words.append(following.strip())
        yield match[2], _short(" ".join(words))


def _short(text: str) -> str:
    text = re.sub(r":\w+:`([^`]*)`", r"\1", " ".join(text.split()))
    return text if len(text) <= _LONG else text.partition(". ")[0].rstrip(".") + "."


def _name(target: Any) -> str:
    return f"{target.__module__}.{target.__qualname__}"
