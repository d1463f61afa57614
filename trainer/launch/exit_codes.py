"""What a process tells the shell: the numbers that scripts rely on."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the command and of each worker.

    `PEER_LOST` passes only between a worker and its controller: the worker itself is sound, another rank is gone.
    """

    DONE = 0
    FAILED = 1
    USAGE = 2
    CHECKPOINT = 3
    PREEMPTED = 75
    PEER_LOST = 76
