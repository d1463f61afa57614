"""Samples that can only be read one after another, made into a sequence whose position is small, exact state."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from gradwire.trainer.data.batches import Batch, collate
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.order import Ordinals, Permutation
from gradwire.trainer.randomness import derive_seed


class Reader(Protocol):
    """An endless reader that knows where it is."""

    def read(self) -> Any:
        """The next sample."""
        ...

    def rewind(self) -> None:
        """Begin again at the very first sample."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where the next sample is."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where the next sample was when the state was taken."""
        ...


class Walk:
    """The samples of a reader, taken in blocks and permuted within each.

    Sample s is in block s // block; the permutation is a function of (seed, number of the block). The saved position
    is the reader's at the start of a block, which is then read again, so nothing that was read ahead is lost. Going
    forward reads everything in between; going back begins again at the last position that `advance` marked or that was
    loaded, or else at the start.

    Args:
        reader: Where the samples come from.
        seed: Names the permutations.
        block: Samples that are held in memory and permuted together; 1 keeps the reader's order.
    """

    walks = True

    def __init__(self, reader: Reader, seed: int, block: int) -> None:
        self._reader = reader
        self._seed = seed
        self._block = block
        self._mark: tuple[int, dict[str, Any] | None] = (0, None)  # the position, the reader's state at its block
        self._next = 0  # the block that the reader stands before
        self._samples: list[Any] = []  # those of the block before
        self._before: dict[str, Any] | None = None  # the reader's state at the start of that block

    def fetch(self, ordinals: Ordinals) -> Batch:
        """The samples with these ordinals as one batch."""
        return collate([self._sample(ordinal) for ordinal in ordinals.tolist()])

    def advance(self, ordinal: int) -> None:
        """Go on to this ordinal, reading everything before its block."""
        block = ordinal // self._block
        if not self._holds(block):
            self._stand_before(block)
        self._mark = (ordinal, self._before if self._holds(block) else self._reader.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """The position: {"ordinal", "block" (its size), "reader" (its state at the start of the ordinal's block)}."""
        return {"ordinal": self._mark[0], "block": self._block, "reader": self._mark[1]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved position.

        Raises:
            DataError: the state is of other data, or of another block size.
        """
        if set(state) != {"ordinal", "block", "reader"}:
            raise DataError("the snapshot holds no position of a stream: resume with the data the run was started with")
        if state["block"] != self._block:
            raise DataError(
                f"the saved position was taken with shuffle={state['block']}, found shuffle={self._block}: keep the "
                "value that the run was started with"
            )
        self._mark = (state["ordinal"], state["reader"])
        self._return_to_mark()

    def _holds(self, block: int) -> bool:
        return block == self._next - 1 and bool(self._samples)

    def _sample(self, ordinal: int) -> Any:
        block, place = divmod(ordinal, self._block)
        if not self._holds(block):
            self._stand_before(block)
            self._read_block()
        return self._samples[place]

    def _stand_before(self, block: int) -> None:
        if block < self._next:
            if self._mark[0] // self._block > block:
                self._mark = (0, None)
            self._return_to_mark()
        while self._next < block:
            self._read_block()

    def _return_to_mark(self) -> None:
        ordinal, state = self._mark
        if state is None:
            self._reader.rewind()
        else:
            self._reader.load_state_dict(state)
        self._next = ordinal // self._block if state is not None else 0
        self._samples, self._before = [], None

    def _read_block(self) -> None:
        before = self._reader.state_dict()
        samples = [self._reader.read() for _ in range(self._block)]
        order = Permutation(self._block, derive_seed(self._seed, "block", self._next))(np.arange(self._block))
        self._samples = [samples[place] for place in order]
        self._before = before
        self._next += 1
