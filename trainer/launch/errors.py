"""Everything that can go wrong between the command and the first update."""

from gradwire.trainer.launch.exit_codes import ExitCode


class LaunchError(RuntimeError):
    """Base of the launch errors; `exit_code` is what the command returns."""

    exit_code = ExitCode.USAGE


class RunNotFoundError(LaunchError):
    """No run of that name or path."""

    exit_code = ExitCode.CHECKPOINT


class RunExistsError(LaunchError):
    """The directory that `run.dir` names already holds a run."""


class RunInUseError(LaunchError):
    """Another process is training in this run directory at this moment."""


class PlacementError(LaunchError):
    """The launch settings or the variables of an outer launcher contradict each other or lack something."""


class ManifestError(LaunchError):
    """What a manifest is to say contradicts itself, lacks something, or would lose what the run saves."""


class HostLostError(LaunchError):
    """A host did not come, did not answer, or left."""

    exit_code = ExitCode.FAILED


class StoppedBeforeStart(BaseException):
    """A signal came before any worker had started: nothing is lost, run the same command again.

    No `Exception`: it may be raised within any library's code, and `except Exception` must not swallow or reword it.
    """

    exit_code = ExitCode.PREEMPTED


class BroadcastError(LaunchError):
    """Rank 0 could not prepare the job; its message and exit code are those of the mistake it found."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = ExitCode(exit_code)


class HostsGoneError(LaunchError):
    """Too few hosts are left, or the one where they meet is gone; what was saved is whole, and the run can go on."""

    exit_code = ExitCode.PREEMPTED


class RunOverError(LaunchError):
    """The run ended while this host waited to take part; `exit_code` is how."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = ExitCode(exit_code)
