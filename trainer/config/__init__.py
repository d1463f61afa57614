"""Configuration: composed once, validated before any worker starts, and the one gate from names to objects."""

import importlib
from typing import TYPE_CHECKING, Any

from gradwire.trainer.config.errors import ConfigError, Mistake, TargetError
from gradwire.trainer.config.range import Measured, Range

if TYPE_CHECKING:
    from gradwire.trainer.config.composition import Composed, compose
    from gradwire.trainer.config.description import describe
    from gradwire.trainer.config.instantiation import instantiate
    from gradwire.trainer.config.stored import load_resolved
    from gradwire.trainer.config.validation import Valid, to_yaml, validate

__all__ = [
    "Composed",
    "ConfigError",
    "Measured",
    "Mistake",
    "Range",
    "TargetError",
    "Valid",
    "compose",
    "describe",
    "instantiate",
    "load_resolved",
    "to_yaml",
    "validate",
]

_LATER = {
    "Composed": "composition",
    "Valid": "validation",
    "compose": "composition",
    "describe": "description",
    "instantiate": "instantiation",
    "load_resolved": "stored",
    "to_yaml": "validation",
    "validate": "validation",
}


def __getattr__(name: str) -> Any:
    """What needs more than a moment to import is imported when it is first asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
