"""Batch size and learning rate as one plan: pure functions of how far a run has come.

The adapters for torch are imported when they are first used: everything else does without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gradwire.schedulers import adascale, batch, coupling, lr, measured, scaling
from gradwire.schedulers.clock import Clock
from gradwire.schedulers.coupling import Coupled, Coupling
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import ClockError, DurationError, PlanError, ScheduleError, SchedulerError
from gradwire.schedulers.horizon import Horizon, Measured, Progress
from gradwire.schedulers.plan import Plan, Step
from gradwire.schedulers.schedule import Constant, Joined, Schedule, Times

if TYPE_CHECKING:
    from gradwire.schedulers.adapters import PlannedBatches, torch_scheduler

__all__ = [
    "Clock",
    "ClockError",
    "Constant",
    "Coupled",
    "Coupling",
    "Duration",
    "DurationError",
    "Horizon",
    "Joined",
    "Measured",
    "Plan",
    "PlanError",
    "PlannedBatches",
    "Progress",
    "Schedule",
    "ScheduleError",
    "SchedulerError",
    "Step",
    "Times",
    "adascale",
    "batch",
    "coupling",
    "lr",
    "measured",
    "scaling",
    "torch_scheduler",
]


def __getattr__(name: str) -> Any:
    if name not in ("PlannedBatches", "torch_scheduler"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.adapters"), name)
