"""What can go wrong in a benchmark."""

from gradwire.trainer.errors import TrainerError


class BenchUsageError(TrainerError):
    """What the command asks for does not go together with the ranks at hand."""

    exit_code = 2


class WrongResultError(TrainerError):
    """Something gave a wrong result while it was measured."""

    exit_code = 1
