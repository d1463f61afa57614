"""Samples of a map-style dataset put together into batches, and batches put together into one."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.order import Ordinals
from gradwire.trainer.randomness import derive_seed

Batch = Any  # a tree of mappings and sequences with tensors whose first axis is the samples


class MapStyle(Protocol):
    """A dataset with a length whose samples can be read in any order.

    With a method `gather(indices: int64 array) -> batch` as well, a whole batch is read at once and nothing is seeded.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def read_batch(dataset: Any, indices: Ordinals, seeds: Iterable[int]) -> Batch:
    """The samples at `indices` as one batch.

    Without a `gather` of its own, the dataset is asked sample by sample, each with torch's (CPU), NumPy's and Python's
    global generators seeded from its own number in `seeds`, so what a dataset draws at random depends on nothing else.
    The generators' states are put back afterwards.

    Raises:
        DataError: the samples do not fit into one batch.
        Exception: whatever the dataset raises, with a note that names the sample.
    """
    if hasattr(dataset, "gather"):
        return dataset.gather(indices)
    samples = []
    with generators_kept():
        for index, seed in zip(indices.tolist(), seeds, strict=True):
            seed_generators(seed)
            samples.append(_read_one(dataset, index))
    try:
        return collate(samples)
    except DataError as error:
        odd = _unlike_the_first(samples)
        if odd is None:
            raise
        raise DataError(
            f"{error}. Sample {indices[odd]} of {type(dataset).__name__} is unlike sample {indices[0]}: "
            f"{_kind(samples[odd])}, not {_kind(samples[0])}"
        ) from error


def _unlike_the_first(samples: Sequence[Any]) -> int | None:
    """The first sample whose structure or shapes differ from those of the very first."""
    return next((k for k, sample in enumerate(samples) if _kind(sample) != _kind(samples[0])), None)


def _kind(sample: Any) -> str:
    """A sample's structure and shapes, for people."""
    if isinstance(sample, Mapping):
        return f"{{{', '.join(f'{key}: {_kind(value)}' for key, value in sample.items())}}}"
    if isinstance(sample, tuple | list):
        return f"({', '.join(map(_kind, sample))})"
    if isinstance(sample, Tensor | np.ndarray):
        return f"{str(sample.dtype).removeprefix('torch.')}{list(sample.shape)}"
    return type(sample).__name__


def _read_one(dataset: Any, index: int) -> Any:
    try:
        return dataset[index]
    except Exception as error:
        where = f"sample {index} of {type(dataset).__name__}, which has {len(dataset)} samples"
        if isinstance(error, StopIteration):  # it would end the generators that it passes through
            raise RuntimeError(f"StopIteration came out of {where}") from error
        error.add_note(f"raised by {where}")
        raise


def collate(samples: Sequence[Any]) -> Batch:
    """Samples as one batch, by torch's default rules.

    Raises:
        DataError: they do not fit together.
    """
    try:
        return default_collate(list(samples))
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        raise DataError(
            f"{len(samples)} samples do not fit into one batch ({error}): return tensors or numbers of the same shape "
            "from every sample, or give the dataset a method gather(indices) that returns a batch"
        ) from error


def join(batches: Sequence[Batch], places: Ordinals) -> Batch:
    """One batch out of several of the same kind: sample k of their concatenation goes to `places[k]`."""
    first = batches[0]
    if isinstance(first, Tensor):
        try:
            together = torch.cat(list(batches))
        except RuntimeError as error:
            shapes = ", ".join(str(tuple(batch.shape[1:])) for batch in batches)
            raise DataError(f"samples of different shapes cannot be mixed in one batch: {shapes}") from error
        result = torch.empty_like(together)
        result[torch.from_numpy(places)] = together
        return result
    if isinstance(first, Mapping):
        if any(batch.keys() != first.keys() for batch in batches):
            keys = "; ".join(", ".join(map(str, batch)) for batch in batches)
            raise DataError(f"samples with different entries cannot be mixed in one batch: {keys}")
        return {key: join([batch[key] for batch in batches], places) for key in first}
    if isinstance(first, tuple):
        joined = [join(parts, places) for parts in zip(*batches, strict=True)]
        return first._make(joined) if hasattr(first, "_make") else tuple(joined)
    together_list = [item for batch in batches for item in batch]
    return [together_list[k] for k in np.argsort(places)]


def sample_seeds(seed: int, purpose: str, ordinals: Ordinals) -> Iterator[int]:
    """The seed of each sample's own random choices."""
    return (derive_seed(seed, purpose, ordinal) for ordinal in ordinals.tolist())


def seed_generators(seed: int) -> None:
    """Seed the CPU's global generators (a device's are left alone: datasets do not use them)."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put the states of the CPU's global generators back at the end."""
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
