"""What a rank trains on, update by update: its share of each global batch, cut into micro-batches."""

import itertools
import logging
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gradwire.schedulers import Clock, Step
from gradwire.trainer.data.batches import Batch
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.order import Ordinals
from gradwire.trainer.data.stream import SampleStream
from gradwire.trainer.data.workers import Workers

log = logging.getLogger(__name__)


class BatchPlan(Protocol):
    """The part of a plan that a feed needs."""

    def at(self, clock: Clock) -> Step:
        """What the update at this clock does."""
        ...

    def finished(self, clock: Clock) -> bool:
        """Whether the run is over."""
        ...


@dataclass(frozen=True)
class MicroBatch:
    """What one forward and backward pass gets.

    Args:
        batch: The samples.
        weight: 1, or 0 for a pass that is made only because other ranks make one.
    """

    batch: Batch
    weight: int


@dataclass(frozen=True)
class UpdateBatch:
    """One rank's part of one update.

    Args:
        step: What the plan says about the update.
        first_ordinal: Ordinal of the global batch's first sample.
        micro_batches: This rank's passes, at least one and equally many on every rank.
    """

    step: Step
    first_ordinal: int
    micro_batches: list[MicroBatch]


@dataclass(frozen=True)
class Pass:
    """The samples of one pass: ordinals first … stop−1, and the pass's weight."""

    first: int
    stop: int
    weight: int

    @property
    def ordinals(self) -> Ordinals:
        return np.arange(self.first, self.stop, dtype=np.int64)


def shares(batch_size: int, world_size: int) -> list[range]:
    """Each rank's contiguous part of 0 … batch_size−1; sizes differ by at most one, the larger ones come first."""
    small, larger = divmod(batch_size, world_size)
    starts = [rank * small + min(rank, larger) for rank in range(world_size + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


Cut = Callable[[int, int], list[int]]


def fewest_passes(share: int, micro: int) -> list[int]:
    """A share cut into full micro-batches and one rest: sizes that sum to `share`, each at most `micro`."""
    full, rest = divmod(share, micro)
    return [micro] * full + [rest] * bool(rest)


def few_shapes(share: int, micro: int) -> list[int]:
    """A share cut into full micro-batches and falling powers of two: sizes that sum to `share`, each at most `micro`.

    However a batch grows, passes have at most ⌈log₂ micro⌉ + 1 sizes. A rest takes as many passes as its binary number
    has ones, at most ⌈log₂ micro⌉.
    """
    full, rest = divmod(share, micro)
    return [micro] * full + [1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1]


def passes(first: int, batch_size: int, rank: int, world_size: int, micro: int, cut: Cut = fewest_passes) -> list[Pass]:
    """A rank's passes over its share of the global batch that begins at ordinal `first`.

    Every rank makes as many passes as the one that needs most. A rank that needs fewer repeats its last sample (or,
    without any, the global batch's first) with weight 0.
    """
    share = shares(batch_size, world_size)[rank]
    sizes = cut(len(share), micro)
    ends = list(itertools.accumulate(sizes, initial=first + share.start))
    own = [Pass(start, stop, 1) for start, stop in itertools.pairwise(ends)]
    most = max(len(cut(batch_size // world_size, micro)), len(cut(math.ceil(batch_size / world_size), micro)))
    spare = first + share.stop - 1 if share else first
    return own + [Pass(spare, spare + 1, 0)] * (most - len(own))


class Feed:
    """Iterates over the updates from a clock to the plan's end and hands out this rank's part of each.

    What it yields depends on the stream, the plan and the arguments' ranks alone: never on `workers`.

    Args:
        stream: The samples of the run.
        plan: Batch sizes.
        clock: Where to begin.
        rank: This rank.
        world_size: Number of ranks.
        micro: Most samples in a pass.
        workers: Processes that read ahead; 0 reads in this process when a batch is asked for.
        cut: How a rank's share becomes passes. A model that is compiled wants `few_shapes`: a batch size that changes
            from update to update then brings no shape that was not there before.

    Raises:
        DataError: the arguments contradict each other.
    """

    def __init__(
        self,
        stream: SampleStream,
        plan: BatchPlan,
        clock: Clock,
        rank: int = 0,
        world_size: int = 1,
        micro: int = 1,
        workers: int = 0,
        cut: Cut = fewest_passes,
    ) -> None:
        if not 0 <= rank < world_size:
            raise DataError(f"rank must lie in 0 … {world_size - 1}, found {rank}")
        if micro < 1 or workers < 0:
            raise DataError(f"micro must be at least 1 and workers at least 0, found {micro} and {workers}")
        if workers and stream.walks:
            raise DataError(
                f"data.workers={workers}, but this data is a stream that every rank walks in order: set data.workers=0"
            )
        self._stream = stream
        self._plan = plan
        self._clock = clock
        self._rank, self._world_size, self._micro, self._workers = rank, world_size, micro, workers
        self._cut = cut
        self._running: Generator[UpdateBatch, None, None] | None = None

    def __iter__(self) -> Iterator[UpdateBatch]:
        self.close()
        self._running = self._updates()
        return self._running

    def close(self) -> None:
        """End the workers. The feed can be iterated over again, from its clock."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def _updates(self) -> Generator[UpdateBatch, None, None]:
        here, ahead = itertools.tee(self._planned())
        batches, end = self._read(one for _, _, planned in ahead for one in planned)
        try:
            for clock, step, planned in here:
                micro_batches = [MicroBatch(next(batches), one.weight) for one in planned]
                self._stream.advance(clock.samples + step.batch_size)
                yield UpdateBatch(step, clock.samples, micro_batches)
        finally:
            end()

    def _planned(self) -> Iterator[tuple[Clock, Step, list[Pass]]]:
        clock, warned = self._clock, False
        while not self._plan.finished(clock):
            step = self._plan.at(clock)
            if step.batch_size < self._world_size and not warned:
                warned = True
                log.warning(
                    "a global batch of %d samples leaves some of the %d ranks without any: they wait for the others",
                    step.batch_size,
                    self._world_size,
                )
            share = passes(clock.samples, step.batch_size, self._rank, self._world_size, self._micro, self._cut)
            yield clock, step, share
            clock = clock.advance(step.batch_size, 0)  # a plan looks at the samples, not at the tokens

    def _read(self, planned: Iterable[Pass]) -> tuple[Iterator[Batch], Callable[[], None]]:
        """The batches of these passes in order, and what to call in the end."""
        ordinals = (one.ordinals for one in planned)
        if self._workers == 0:
            return map(self._stream.fetch, ordinals), lambda: None
        workers = Workers(self._stream, ordinals, self._workers)
        return iter(workers), workers.end
