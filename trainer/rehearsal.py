"""Passes that leave no trace in a trainer: to find out what fits into memory and how fast it is."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gradwire.trainer.losses import move
from gradwire.trainer.micro_batch import Untouched
from gradwire.trainer.randomness import seed_micro_batch

if TYPE_CHECKING:
    from gradwire.trainer.trainer import Trainer

_SECONDS = 0.5  # of passes for one size
_FEWEST, _MOST = 3, 20  # passes
_GAIN = 1.03  # less than this over the best so far is no improvement


@dataclass(frozen=True)
class Speed:
    """How fast passes of one size are.

    Args:
        micro_batch: Samples in a pass of one rank.
        seconds: Median of the passes, on the slowest rank.
        samples_per_second: Over all ranks.
        tokens_per_second: Over all ranks.
        passes: How many were timed.
    """

    micro_batch: int
    seconds: float
    samples_per_second: float
    tokens_per_second: float
    passes: int


class Rehearsal:
    """Passes on the first samples of a trainer's data, on every rank at the same time.

    Args:
        trainer: What trains; it is as before when a rehearsal is over.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._strategy = trainer.strategy

    def attempt(self, size: int) -> None:
        """One pass with so many samples."""
        batch = self._batch(size)
        with Untouched(self._trainer.model):
            self._pass(batch)

    def speed(self, size: int) -> Speed:
        """Time passes with so many samples; the first one is not counted. A collective."""
        batch = self._batch(size)
        with Untouched(self._trainer.model):
            self._timed(batch)
            passes = min(max(round(_SECONDS / self._slowest(self._timed(batch))), _FEWEST), _MOST)
            seconds = self._slowest(statistics.median(self._timed(batch) for _ in range(passes)))
        samples = size * self._strategy.data_size / seconds
        return Speed(size, seconds, samples, samples * self._trainer.context, passes)

    def speeds(self, sizes: Sequence[int]) -> Iterator[Speed]:
        """The speed at each size, rising, until two sizes in a row were no improvement."""
        best, vain = 0.0, 0
        for size in sizes:
            speed = self.speed(size)
            vain = 0 if speed.samples_per_second > _GAIN * best else vain + 1
            best = max(best, speed.samples_per_second)
            yield speed
            if vain == 2:
                return

    def agree(self, answer: bool) -> bool:
        """Whether every rank's answer is yes. A collective."""
        return not int(self._strategy.start_sum(torch.tensor([int(not answer)])).wait()[0])

    def _batch(self, size: int) -> Any:
        return move(self._trainer.stream.fetch(np.arange(size)), self._strategy.device)

    def _pass(self, batch: Any) -> None:
        trainer = self._trainer
        seed_micro_batch(trainer.settings.seed, self._strategy.data_rank, trainer.clock.updates, 0)
        with self._strategy.accumulate():  # gradients stay here: ranks need not go on together where memory runs out
            with trainer.precision.autocast():
                loss = trainer.loss(trainer.model, batch)
            self._strategy.backward(trainer.precision.scaled(loss / max(trainer.loss.count(batch), 1)))

    def _timed(self, batch: Any) -> float:
        self._synchronize()
        began = time.perf_counter()
        self._pass(batch)
        self._synchronize()
        return time.perf_counter() - began

    def _synchronize(self) -> None:
        if self._strategy.device.type == "cuda":
            torch.cuda.synchronize(self._strategy.device)

    def _slowest(self, seconds: float) -> float:
        return max(float(each) for each in self._strategy.gather(torch.tensor([seconds], dtype=torch.float64)))


@contextmanager
def optimizer_state_allocated(trainer: "Trainer") -> Iterator[None]:
    """Within the block the optimizer holds its state, so that memory is as full as it will be in training.

    An update with gradients of zero at a rate of zero makes the state and changes no weight.
    """
    optimizer = trainer.optimizer
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    try:
        yield
    finally:
        optimizer.state.clear()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def doublings(largest: int) -> list[int]:
    """1, 2, 4, … up to `largest`, and that itself."""
    sizes = [1 << power for power in range(largest.bit_length())]
    return sizes if sizes[-1] == largest else [*sizes, largest]
