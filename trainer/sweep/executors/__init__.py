"""Where the trials of a sweep run."""

from gradwire.trainer.sweep.executors.base import Executor, Launch, Running
from gradwire.trainer.sweep.executors.local import Local
from gradwire.trainer.sweep.executors.slurm import Slurm

__all__ = ["Executor", "Launch", "Local", "Running", "Slurm"]
