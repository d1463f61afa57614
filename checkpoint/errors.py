"""Everything that can go wrong with checkpoints. The command line maps damage and absence to exit code 3."""


class CheckpointError(RuntimeError):
    """Base of the library's errors."""


class StoreError(CheckpointError):
    """The store cannot be used as asked: wrong URL, no permission, or a file system without create-if-absent."""


class StoreUnavailable(StoreError):  # noqa: N818
    """The store did not answer, or answered with errors, for longer than the retries go on."""


class StoreFull(StoreError):  # noqa: N818
    """There is no space left in the store."""


class DamagedCheckpoint(CheckpointError):  # noqa: N818
    """An object of the store is missing, cut short, altered or contradicts itself."""


class MissingObject(DamagedCheckpoint):
    """An object that should be in the store is not there."""


class UnsupportedFormat(CheckpointError):  # noqa: N818
    """The store was written in a format that this version does not know."""


class NoCheckpoint(CheckpointError):  # noqa: N818
    """The store holds no snapshot, or none of the update asked for."""


class CheckpointWriteError(CheckpointError):
    """A snapshot was not committed; the last commit stays as it was."""


class WriterFenced(CheckpointWriteError):  # noqa: N818
    """Another writer has taken over this store: this one must stop."""


class WorldSizeMismatch(CheckpointError):  # noqa: N818
    """The snapshot holds state of single ranks and was saved by another number of ranks."""


class UnsupportedState(CheckpointError):  # noqa: N818
    """The state holds something that is neither a plain tensor nor a JSON-like value, or lacks what is asked for."""


class StateTooLarge(CheckpointError):  # noqa: N818
    """The snapshot's tensors do not fit into the memory that is free."""


class TagError(CheckpointError):
    """A tag's name is not allowed, is taken by another snapshot, or names none."""


class ExportError(CheckpointError):
    """Weights cannot be exported or imported as asked: the target exists, the layout or a package is wrong."""
