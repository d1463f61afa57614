"""Weights alone, put together from the slices that torch.distributed.checkpoint saved."""

import math
import warnings

import psutil
import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.dcp.reader import Reader
from gradwire.checkpoint.errors import StateTooLarge, UnsupportedState

_MODEL = "model."


def load_sharded_weights(url: str, update: int | None = None) -> tuple[dict[str, Tensor], Commit]:
    """The whole tensors that a snapshot holds under `model`, by name; nothing else is read.

    Args:
        url: A store that `Writer` saved in.
        update: Which snapshot; None for the newest whole one.

    Raises:
        UnsupportedState: it has no `model`.
        CheckpointError: it cannot be read.
    """
    reader = Reader(url, update)
    everything = reader.read_metadata().state_dict_metadata
    described = {
        name: found
        for name, found in everything.items()
        if name.startswith(_MODEL) and isinstance(found, TensorStorageMetadata)
    }
    if reader.commit is None or not described:
        raise UnsupportedState(f"{url} has no 'model'; it has {', '.join(sorted(everything)[:5])}")
    needed, free = sum(map(_size, described.values())), psutil.virtual_memory().available
    if needed > free:
        raise StateTooLarge(f"{url}: the weights take {needed} bytes and {free} bytes of memory are free")
    weights = {name: torch.empty(found.size, dtype=found.properties.dtype) for name, found in described.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that nothing is distributed
            load(dict(weights), storage_reader=Reader(url, reader.commit.update), no_dist=True)
    except CheckpointException as error:
        raise error.failures[0][0] from error
    return {name.removeprefix(_MODEL): tensor for name, tensor in weights.items()}, reader.commit


def _size(found: TensorStorageMetadata) -> int:
    return math.prod(found.size) * found.properties.dtype.itemsize
