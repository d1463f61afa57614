"""Everything that can go wrong between ranks, or between a module and its reducer."""


class CommError(RuntimeError):
    """Base of the communication errors."""


class TopologyError(CommError):
    """Axes that make no topology, or do not multiply to the ranks at hand."""


class CollectiveError(CommError):
    """A collective broke: a peer died, or did not answer within the group's time-out.

    Attributes:
        origin: Where it broke first, as far as is known here.
    """

    origin: str = ""


class AttachError(CommError):
    """A module that cannot be reduced, or that changed after it was attached."""


class BackwardError(CommError):
    """A backward pass whose gradients cannot be reduced as they are."""


class CodecError(CommError):
    """A codec that cannot be as it was asked for, or tensors that it does not take."""


class ProgramError(CommError):
    """Rounds that do not add up to the collective that they should be."""


class ReplicaMismatch(CommError):  # noqa: N818 - says what is found
    """Ranks hold different modules, or different bits in the same module."""
