"""What runs recorded, as one HTML file. Names are imported when they are first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.trainer.report.pictures import save_pictures
    from gradwire.trainer.report.reporting import report_on, write
    from gradwire.trainer.report.trials import Objective, Trial, sweep_charts, sweep_document

__all__ = ["Objective", "Trial", "report_on", "save_pictures", "sweep_charts", "sweep_document", "write"]

_MODULES = {
    "Objective": "trials",
    "Trial": "trials",
    "report_on": "reporting",
    "save_pictures": "pictures",
    "sweep_charts": "trials",
    "sweep_document": "trials",
    "write": "reporting",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
