"""Checkpoints side by side: what saving and restoring a training state costs, and whether what comes back is right."""

from gradwire.checkpoint.benchmark.contenders import NAMES, OURS
from gradwire.checkpoint.benchmark.contest import Contest, Measured
from gradwire.checkpoint.benchmark.page_cache import can_drop, drop
from gradwire.checkpoint.benchmark.places import Place
from gradwire.checkpoint.benchmark.recovering import Recovered
from gradwire.checkpoint.benchmark.training_state import TrainingState

__all__ = [
    "NAMES",
    "OURS",
    "Contest",
    "Measured",
    "Place",
    "Recovered",
    "TrainingState",
    "can_drop",
    "drop",
]
