"""The endless sequence of a run's samples: sample s is the same whoever asks for it, and whenever."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gradwire.trainer.data.batches import Batch, read_batch, sample_seeds
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.order import Ordinals, Shuffled


class Samples(Protocol):
    """Samples by ordinal, in an order that is decided already."""

    @property
    def walks(self) -> bool:
        """Whether samples can be read in order only, from a position that is state."""
        ...

    def fetch(self, ordinals: Ordinals) -> Batch:
        """The samples with these ordinals as one batch."""
        ...

    def advance(self, ordinal: int) -> None:
        """Go on to this ordinal: what `state_dict` then returns is the position there."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position; empty where there is none."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved position."""
        ...


@runtime_checkable
class Ordered(Protocol):
    """A dataset that brings an order of its own (a stream, a mixture)."""

    def in_order(self, seed: int) -> Samples:
        """Its samples in that order."""
        ...


class ShuffledSamples:
    """The samples of a map-style dataset, shuffled anew each epoch; a pure function, so it has no position.

    Args:
        dataset: Map-style.
        seed: Names the order, and seeds each sample's own random choices together with its ordinal.
    """

    walks = False

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._order = Shuffled(length_of(dataset), seed)

    def fetch(self, ordinals: Ordinals) -> Batch:
        """The samples with these ordinals as one batch."""
        return read_batch(self._dataset, self._order.locate(ordinals), sample_seeds(self._seed, "sample", ordinals))

    def advance(self, ordinal: int) -> None:
        """Nothing to do."""

    def state_dict(self) -> dict[str, Any]:
        """No state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """No state to load.

        Raises:
            DataError: the state is of a data set that is read in order.
        """
        if state:
            raise DataError(
                "the saved position is that of streaming data, but this data set is read by index: resume "
                "with the data that the run was started with"
            )


class SampleStream:
    """The samples of a dataset in the order of the run.

    Args:
        dataset: Map-style (`__len__`, `__getitem__`, perhaps `gather`), or one that brings an order of its own.
        seed: Names the order.

    Raises:
        DataError: the dataset is neither, or is empty.
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        self.dataset = dataset
        self._seed = seed
        ordered = isinstance(dataset, Ordered)
        self._samples: Samples = dataset.in_order(seed) if ordered else ShuffledSamples(dataset, seed)
        self.epoch_samples: int | None = None if ordered else length_of(dataset)

    @property
    def walks(self) -> bool:
        """Whether samples can be read in order only, from a position that is state."""
        return self._samples.walks

    @property
    def size(self) -> int:
        """Samples of the dataset.

        Raises:
            DataError: it has no length.
        """
        return length_of(self.dataset)

    def fetch(self, ordinals: Ordinals) -> Batch:
        """The samples with these ordinals (0 is the first of the run; int64 [B]) as one batch."""
        return self._samples.fetch(np.asarray(ordinals, dtype=np.int64))

    def take(self, indices: Ordinals) -> Batch:
        """The samples at these indices of the dataset itself (int64 [B]) as one batch, as evaluation reads them."""
        indices = np.asarray(indices, dtype=np.int64)
        length_of(self.dataset)
        return read_batch(self.dataset, indices, sample_seeds(self._seed, "evaluation", indices))

    def advance(self, ordinal: int) -> None:
        """All samples before this ordinal are done with: the state is the position there."""
        self._samples.advance(ordinal)

    def state_dict(self) -> dict[str, Any]:
        """The position, where the dataset is one that is read in order; otherwise empty."""
        return self._samples.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved position."""
        self._samples.load_state_dict(state)


def length_of(dataset: Any) -> int:
    """The samples of a map-style dataset.

    Raises:
        DataError: it is not map-style or is empty.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"a dataset needs __len__ and __getitem__ (map-style), found {type(dataset).__name__} without. Give it "
            "both; for data that can only be read in order there is gradwire.trainer.data.HuggingFaceStream"
        )
    count = len(dataset)
    if count < 1:
        raise DataError(f"{type(dataset).__name__} holds no sample: check the paths and splits that it reads")
    return count
