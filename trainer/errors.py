"""Everything that can go wrong in the trainer itself; libraries and data sources have hierarchies of their own."""


class TrainerError(RuntimeError):
    """Base of the trainer's errors."""


class NonFiniteError(TrainerError):
    """The gradient of an update holds NaN or infinity and the policy is `raise`."""


class LossError(TrainerError):
    """A loss returned something other than what its contract promises, or a model names no loss."""


class StateMismatchError(TrainerError):
    """A saved state, a file of weights or a pattern does not fit the model or optimizer it is meant for."""

    exit_code = 2  # the command asks for what cannot be put together


class AdapterError(TrainerError):
    """An adapter does not fit the model that it is meant for."""

    exit_code = 2


class UnsupportedPrecisionError(TrainerError):
    """The device cannot compute in the precision asked for."""


class MissingPackageError(TrainerError):
    """What was asked for needs a package that is not installed."""

    exit_code = 2


class NoiseError(TrainerError):
    """The gradient noise scale cannot be measured on what was given."""


class OverlapError(TrainerError):
    """Gradients are to come one update late, and something needs them at once."""

    exit_code = 2


class StrategyError(TrainerError):
    """A strategy cannot train this model, or not on these ranks and devices."""

    exit_code = 2


class WriteError(TrainerError):
    """A file that the command was to write cannot be written, which showed only when the work was done."""

    exit_code = 1


class IntervalError(TrainerError):
    """Something is to happen more often than a sample is seen."""

    exit_code = 2


class PredictionError(TrainerError):
    """What was asked to be foretold cannot be, or is of something that does not exist."""

    exit_code = 2


class ReplayError(TrainerError):
    """What the journal holds does not lead to the state that it led to before."""

    exit_code = 3  # the checkpoint asked for cannot be had


class ProofError(ReplayError):
    """What was to be proven before the run goes on is not so, or cannot be looked at."""


class NothingToProveError(TrainerError):
    """A proof was asked for, and there is no journal to replay."""

    exit_code = 2
