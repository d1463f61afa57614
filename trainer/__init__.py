"""The trainer: configuration, launching, data, models and the loop. Names are imported when they are first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.trainer.callbacks import Callback
    from gradwire.trainer.losses import Classification, Loss, NextToken
    from gradwire.trainer.settings import Result, Run, Settings
    from gradwire.trainer.trainer import Trainer

__all__ = ["Callback", "Classification", "Loss", "NextToken", "Result", "Run", "Settings", "Trainer"]

_MODULES = {
    "Callback": "callbacks",
    "Classification": "losses",
    "Loss": "losses",
    "NextToken": "losses",
    "Result": "settings",
    "Run": "settings",
    "Settings": "settings",
    "Trainer": "trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
