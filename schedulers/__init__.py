"""Batch size and learning rate as one plan: pure functions of how far a run has come."""

from gradwire.schedulers import batch, lr, scaling
from gradwire.schedulers.clock import Clock
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import ClockError, DurationError, PlanError, ScheduleError, SchedulerError
from gradwire.schedulers.horizon import Horizon, Progress
from gradwire.schedulers.plan import Plan, Step
from gradwire.schedulers.schedule import Constant, Joined, Schedule, Times

__all__ = [
    "Clock",
    "ClockError",
    "Constant",
    "Duration",
    "DurationError",
    "Horizon",
    "Joined",
    "Plan",
    "PlanError",
    "Progress",
    "Schedule",
    "ScheduleError",
    "SchedulerError",
    "Step",
    "Times",
    "batch",
    "lr",
    "scaling",
]
