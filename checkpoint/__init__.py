"""Snapshots of training runs: verified, published whole or not at all, on a disk or an object store."""

from gradwire.checkpoint.background import Saving
from gradwire.checkpoint.checkpointer import Checkpointer
from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.errors import (
    CheckpointError,
    CheckpointWriteError,
    DamagedCheckpoint,
    ExportError,
    MissingObject,
    NoCheckpoint,
    StateTooLarge,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TagError,
    UnsupportedFormat,
    UnsupportedState,
    WorldSizeMismatch,
    WriterFenced,
)
from gradwire.checkpoint.policy import Policy, Standing
from gradwire.checkpoint.sharded import Cut, Sharded, Slice, Wanted
from gradwire.checkpoint.state import State
from gradwire.checkpoint.weights import load_weights

__all__ = [
    "CheckpointError",
    "CheckpointWriteError",
    "Checkpointer",
    "Commit",
    "Cut",
    "DamagedCheckpoint",
    "ExportError",
    "MissingObject",
    "NoCheckpoint",
    "Policy",
    "Saving",
    "Sharded",
    "Slice",
    "Standing",
    "State",
    "StateTooLarge",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "TagError",
    "UnsupportedFormat",
    "UnsupportedState",
    "Wanted",
    "WorldSizeMismatch",
    "WriterFenced",
    "load_weights",
]
