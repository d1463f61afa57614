"""Everything that can go wrong in a sweep; mistakes in its configuration are ConfigErrors as everywhere."""

from gradwire.trainer.launch.exit_codes import ExitCode


class SweepError(RuntimeError):
    """Base of the sweep's errors; `exit_code` is what the command returns."""

    exit_code = ExitCode.USAGE


class SweepExistsError(SweepError):
    """The folder that `sweep.dir` names already holds a sweep."""


class SweepNotFoundError(SweepError):
    """The folder holds no sweep, or one that cannot be read."""

    exit_code = ExitCode.CHECKPOINT


class StorageError(SweepError):
    """The storage of the sweep's results cannot be reached, opened or written."""


class DamagedSweepError(SweepError):
    """Something in the sweep's folder cannot be read, or does not belong to the rest."""

    exit_code = ExitCode.CHECKPOINT


class UnwritableError(SweepError):
    """The sweep's folder takes no more files, or processes cannot be started."""

    exit_code = ExitCode.FAILED


class ExecutorError(SweepError):
    """Trials cannot be started where they are to run."""


class TooManyFailuresError(SweepError):
    """More trials failed than `sweep.failures` lets pass, or all did."""

    exit_code = ExitCode.FAILED


class NoResultError(SweepError):
    """Something was asked of a sweep of which no trial has a result."""

    exit_code = ExitCode.FAILED
