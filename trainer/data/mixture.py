"""Weighted mixtures of data sources."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from gradwire.trainer.config.range import Range
from gradwire.trainer.data.batches import Batch, join
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.order import Ordinals, Permutation
from gradwire.trainer.data.parts import training_set, validation_set
from gradwire.trainer.data.stream import SampleStream, length_of
from gradwire.trainer.randomness import derive_seed


class Mixture:
    """Several data sources by weight: in every block of samples each has a fixed, exact number.

    There is no epoch: each source goes on through epochs of its own. Validation takes the sources' parts whole.

    Args:
        sources: Data sources by name, each a `_target_` with its arguments; all with the same context and vocabulary.
        weights: Each source's share of the samples, by the same names; they need not sum to 1.
        block: Samples after which the shares are exact (as far as whole samples can be).

    Raises:
        DataError: names differ, a weight is not positive or too small for one sample in a block, or sources do not fit
            together.
    """

    def __init__(
        self,
        sources: dict[str, Any],
        weights: dict[str, Annotated[float, Range(gt=0)]],
        block: Annotated[int, Range(ge=1, le=1_000_000)] = 1000,
    ) -> None:
        if not sources or sources.keys() != weights.keys():
            raise DataError(
                f"weights must name the sources, found weights of {', '.join(weights) or 'nothing'} and sources "
                f"{', '.join(sources) or 'none'}: give each source a weight"
            )
        self._sources = sources
        self._quotas = quotas(weights, block)
        self.context: int = self._common("context", 1)
        self.vocabulary: int | None = self._common("vocabulary", None)
        self.packed: bool = self._common("packed", False)

    @cached_property
    def train(self) -> "MixedSamples":
        """The training samples, in an order of their own."""
        return MixedSamples([training_set(source) for source in self._sources.values()], self._quotas)

    @cached_property
    def validation(self) -> "Chained | None":
        """The validation samples of all sources that have some."""
        parts = [part for source in self._sources.values() if (part := validation_set(source)) is not None]
        return Chained(parts) if parts else None

    @property
    def encode(self) -> Any:
        """Text to token ids, as the first source does it; not there where it does not."""
        return next(iter(self._sources.values())).encode

    @property
    def decode(self) -> Any:
        """Token ids to text, as the first source does it; not there where it does not."""
        return next(iter(self._sources.values())).decode

    def _common(self, name: str, default: Any) -> Any:
        values = {key: getattr(source, name, default) for key, source in self._sources.items()}
        if len(set(values.values())) > 1:
            found = ", ".join(f"{key} has {value}" for key, value in values.items())
            raise DataError(f"the sources of a mixture need the same {name}: {found}")
        return next(iter(values.values()))


class MixedSamples:
    """Training samples of several datasets with fixed numbers of each in every block.

    Args:
        datasets: Map-style, or with an order of their own.
        quotas: Samples of each in a block.
    """

    def __init__(self, datasets: Sequence[Any], quotas: Sequence[int]) -> None:
        self._datasets = datasets
        self._quotas = quotas

    def in_order(self, seed: int) -> "MixedOrder":
        """The mixture's samples by ordinal."""
        streams = [SampleStream(each, derive_seed(seed, "mixture", k)) for k, each in enumerate(self._datasets)]
        return MixedOrder(streams, self._quotas, seed)


class MixedOrder:
    """Which dataset, and which of its samples, each ordinal is: a pure function that looks at one block at a time.

    A block holds `quotas[k]` samples of dataset k, in an order that a permutation keyed by (seed, block) decides. The
    samples of each dataset come in that dataset's own order, so one that can only be read in order may take part.

    Args:
        streams: The datasets' own samples.
        quotas: Samples of each in a block.
        seed: Names the order.
    """

    def __init__(self, streams: Sequence[SampleStream], quotas: Sequence[int], seed: int) -> None:
        self._streams = streams
        self._quotas = np.array(quotas, dtype=np.int64)
        self._ends = np.cumsum(self._quotas)
        self._block = int(self._ends[-1])
        self._seed = seed
        self._latest: tuple[int, Ordinals, Ordinals] | None = None  # a block and its layout

    @property
    def walks(self) -> bool:
        """Whether one of the datasets can be read in order only."""
        return any(stream.walks for stream in self._streams)

    def locate(self, ordinals: Ordinals) -> tuple[Ordinals, Ordinals]:
        """For each ordinal ([B]) the number of its dataset and the ordinal within it (int64 [B] each)."""
        blocks, places = np.divmod(ordinals, self._block)
        numbers, inner = np.empty_like(ordinals), np.empty_like(ordinals)
        for block in np.unique(blocks):
            here = blocks == block
            owners, ranks = self._layout(int(block))
            numbers[here], inner[here] = owners[places[here]], ranks[places[here]]
        inner += blocks * self._quotas[numbers]
        return numbers, inner

    def fetch(self, ordinals: Ordinals) -> Batch:
        """The samples with these ordinals as one batch."""
        numbers, inner = self.locate(ordinals)
        places = [np.flatnonzero(numbers == number) for number in range(len(self._streams))]
        taken = [(stream, place) for stream, place in zip(self._streams, places, strict=True) if place.size]
        return join([stream.fetch(inner[place]) for stream, place in taken], np.concatenate([p for _, p in taken]))

    def advance(self, ordinal: int) -> None:
        """Go on to this ordinal in every dataset."""
        block, place = divmod(ordinal, self._block)
        counts = np.bincount(self._layout(block)[0][:place], minlength=len(self._streams))
        for stream, quota, count in zip(self._streams, self._quotas.tolist(), counts.tolist(), strict=True):
            stream.advance(block * quota + count)

    def state_dict(self) -> dict[str, Any]:
        """The positions of the datasets that have one; empty where none has."""
        return {"streams": [stream.state_dict() for stream in self._streams]} if self.walks else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved positions.

        Raises:
            DataError: they are those of another mixture.
        """
        saved = state.get("streams", [{}] * len(self._streams))
        if len(saved) != len(self._streams):
            raise DataError(f"the saved position is that of {len(saved)} sources, found {len(self._streams)}")
        for stream, one in zip(self._streams, saved, strict=True):
            stream.load_state_dict(one)

    def _layout(self, block: int) -> tuple[Ordinals, Ordinals]:
        """For each place in a block the dataset it belongs to, and how many of that one's places come before it."""
        if self._latest is None or self._latest[0] != block:
            order = Permutation(self._block, derive_seed(self._seed, "mixture block", block))(np.arange(self._block))
            owners = np.searchsorted(self._ends, order, side="right").astype(np.int64)
            ranks = np.empty_like(owners)
            for number, quota in enumerate(self._quotas.tolist()):
                ranks[owners == number] = np.arange(quota)
            self._latest = (block, owners, ranks)
        return self._latest[1:]


class Chained:
    """Map-style datasets one after another.

    Args:
        parts: The datasets.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._streams = [SampleStream(part) for part in parts]
        self._ends = np.cumsum([length_of(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self._streams[number].dataset[index - self._start(number)]

    def gather(self, indices: Ordinals) -> Batch:
        """The samples at `indices` (int64 [B]) as one batch."""
        numbers = np.searchsorted(self._ends, indices, side="right")
        groups = [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist()]
        taken = [self._streams[number].take(indices[places] - self._start(number)) for number, places in groups]
        return join(taken, np.concatenate([places for _, places in groups]))

    def _start(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0


def quotas(weights: Mapping[str, float], block: int) -> list[int]:
    """Whole samples of each source in a block, by largest remainder; they sum to `block`.

    Raises:
        DataError: a weight is not a positive number, or comes to less than one sample.
    """
    for name, weight in weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise DataError(f"weights.{name} must be a positive number, found {weight}: leave out what is not wanted")
    total = math.fsum(weights.values())
    exact = [weight / total * block for weight in weights.values()]
    whole = [math.floor(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda k: (whole[k] - exact[k], k))
    for k in by_remainder[: block - sum(whole)]:
        whole[k] += 1
    for name, count in zip(weights, whole, strict=True):
        if count == 0:
            raise DataError(f"weights.{name} comes to less than one sample in a block of {block}: raise block")
    return whole
