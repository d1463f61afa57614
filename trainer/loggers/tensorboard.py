"""TensorBoard."""

from typing import Any

from gradwire.trainer.loggers.base import Record, RunInfo

NOT_INSTALLED = "logger=tensorboard needs tensorboard: pip install 'gradwire[tensorboard]'"


class TensorBoardMissingError(ImportError):
    """The `tensorboard` extra is not installed."""


class TensorBoard:
    """Writes event files for TensorBoard into the folder `tensorboard` of the run.

    Raises:
        TensorBoardMissingError: tensorboard is not installed.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TensorBoardMissingError(NOT_INSTALLED) from error
        self._make = SummaryWriter
        self._writer: Any = None

    def start(self, info: RunInfo) -> None:
        """Open the event file; what a resumed run measures anew replaces what came after its restored update."""
        if info.run_dir is not None:
            self._writer = self._make(str(info.run_dir / "tensorboard"), purge_step=info.kept_update + 1)

    def log(self, record: Record) -> None:
        """Write each number as a scalar and each text as text, at the record's update."""
        if self._writer is None:
            return
        for key, value in record.items():
            add = self._writer.add_text if isinstance(value, str) else self._writer.add_scalar
            add(key, value, int(record["update"]))
        self._writer.flush()

    def finish(self, status: str) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
