"""The gradient noise scale at fixed weights, from as many samples as it takes to see it.

In training each update gives one rough estimate and the weights move on. Here the weights stand still, so the gradient
is added up over batches far larger than the run's own, until the noise scale lies well below their size.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.schedulers import Clock, Step
from gradwire.schedulers.noise_scale import NoiseScale, Norms
from gradwire.trainer.data import Feed, UpdateBatch
from gradwire.trainer.losses import move
from gradwire.trainer.micro_batch import Untouched
from gradwire.trainer.noise import NoiseMeter
from gradwire.trainer.randomness import seed_micro_batch
from gradwire.trainer.trainer import Trainer

_ROUNDS = 4
_SMALL = 8  # gradients of micro-batches on each rank, at least, in a round
_LARGER = 4  # times the samples, where these were too few
_ENOUGH = 4  # times the noise scale, in a round: four fifths of the gradient's squared norm are then no noise
_DECAY = 0.99  # over a few rounds a plain mean, nearly


@dataclass(frozen=True)
class Noise:
    """What was measured of the gradient.

    Args:
        noise_scale: Critical batch size, in samples; None where the gradient drowned in the noise.
        variance: 𝒮, the variance of one sample's gradient summed over parameters.
        gradient: 𝒢², the true gradient's squared norm.
        samples: Samples of a round.
        rounds: Rounds that were averaged.
        enough: Whether a round had several times as many samples as the noise scale: else it is a rough guess.
    """

    noise_scale: float | None
    variance: float | None
    gradient: float | None
    samples: int
    rounds: int
    enough: bool


@dataclass(frozen=True)
class _Rounds:
    """A plan of some equal batches that are not for training."""

    first: int
    batch_size: int
    count: int

    def at(self, clock: Clock) -> Step:
        return Step(self.batch_size, 0.0)

    def finished(self, clock: Clock) -> bool:
        return clock.samples >= self.first + self.count * self.batch_size


def survey(trainer: Trainer, micro: int, most: int, check: Callable[[str], None]) -> Noise:
    """Measure at the trainer's present weights, which stay as they are. A collective.

    Args:
        trainer: Stands after an update, or at its start.
        micro: Most samples of a pass.
        most: Samples that may be spent on a round.
        check: Told what comes next; may raise to end the survey.

    Raises:
        NoiseError: a parameter's gradient arrives in parts.
    """
    world_size = trainer.strategy.world_size
    fewest = 2 * world_size
    size = min(max(_SMALL * world_size * micro, trainer.plan.at(trainer.clock).batch_size), max(most, fewest))
    while True:
        check(f"measuring the noise scale on {_ROUNDS} × {size:,} samples")
        found = _measured(trainer, size, min(micro, max(size // (_SMALL * world_size), 1)))
        if found.enough or size >= most:
            return found
        size = min(size * _LARGER, most)


def _measured(trainer: Trainer, size: int, micro: int) -> Noise:
    average = NoiseScale(_DECAY)
    meter = NoiseMeter({"all": [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]})
    strategy, clock = trainer.strategy, trainer.clock
    feed = Feed(
        trainer.stream,
        _Rounds(clock.samples, size, _ROUNDS),
        clock,
        rank=strategy.rank,
        world_size=strategy.world_size,
        micro=micro,
    )
    with Untouched(trainer.model):
        for turn, batch in enumerate(feed):
            for norms in _norms(trainer, meter, batch, turn):
                average.update(norms)
            trainer.optimizer.zero_grad()
    value = average.value
    enough = value is not None and _ENOUGH * value <= size
    return Noise(value, average.noise, average.gradient, size, _ROUNDS, enough)


def _norms(trainer: Trainer, meter: NoiseMeter, batch: UpdateBatch, turn: int) -> list[Norms]:
    """One round: the gradient of the whole batch, and those of the micro-batches on their way into it."""
    counts = [trainer.loss.count(micro.batch) * micro.weight for micro in batch.micro_batches]
    targets = max(int(_summed(trainer, torch.tensor([sum(counts)]))[0]), 1)
    last = len(batch.micro_batches) - 1
    for index, micro in enumerate(batch.micro_batches):
        seed_micro_batch(trainer.settings.seed, trainer.strategy.rank, trainer.clock.updates + turn, index)
        with meter.micro_batch(counts[index]), nullcontext() if index == last else trainer.strategy.accumulate():
            with trainer.precision.autocast():
                loss = trainer.loss(trainer.model, move(micro.batch, trainer.strategy.device)) * micro.weight
            trainer.precision.backward(loss / targets)
    scale = trainer.precision.scale
    trainer.precision.unscale(trainer.optimizer)
    big = torch.tensor([meter.big()["all"] if trainer.strategy.rank == 0 else 0.0], dtype=torch.float64)
    trainer.precision.step(trainer.optimizer, finite=False)  # no update: only the loss scale learns from what it saw
    *small, whole = _summed(trainer, torch.cat([meter.local(), big]))
    found = meter.norms(torch.stack(small), {"all": whole.item()}, batch.step.batch_size, targets, scale)
    return list(found.values())


def _summed(trainer: Trainer, values: Tensor) -> Tensor:
    return trainer.strategy.start_sum(values).wait()
