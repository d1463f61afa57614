"""Where the measured values of a run go."""

from gradwire.trainer.loggers.base import Logger, Record, RunInfo
from gradwire.trainer.loggers.metrics import MetricsFile
from gradwire.trainer.loggers.progress import Progress
from gradwire.trainer.loggers.starts import StartsFile
from gradwire.trainer.loggers.tensorboard import TensorBoard
from gradwire.trainer.loggers.wandb import Wandb

__all__ = ["Logger", "MetricsFile", "Progress", "Record", "RunInfo", "StartsFile", "TensorBoard", "Wandb"]
