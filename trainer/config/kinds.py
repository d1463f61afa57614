"""Whether a class is what a field asks for: a subclass of a base, or a class with a protocol's methods."""

import importlib
from collections.abc import Iterator
from types import UnionType
from typing import Any


def load_base(dotted: str) -> Any:
    """The class or protocol that a schema names (never a name from a configuration)."""
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


def conforms(target: Any, base: Any) -> bool:
    """Whether objects of class `target` can stand where `base` is declared; functions are taken at their word."""
    if isinstance(base, UnionType):
        return any(conforms(target, member) for member in base.__args__)
    if not isinstance(target, type) or not isinstance(base, type):
        return True
    if getattr(base, "_is_protocol", False):
        return all(hasattr(target, name) for name in protocol_methods(base))
    return issubclass(target, base)


def protocol_methods(protocol: type) -> Iterator[str]:
    """The methods that a protocol declares (attributes may be set by a constructor, so a class need not show them)."""
    for owner in protocol.__mro__:
        if getattr(owner, "_is_protocol", False):
            for name, value in vars(owner).items():
                special = name in ("__call__", "__len__", "__getitem__", "__iter__")
                if callable(value) and (special or not name.startswith("_")):
                    yield name
