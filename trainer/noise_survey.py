"""The gradient noise scale at fixed weights, from as many samples as it takes to see it.

In training each update gives one rough estimate and the weights move on. Here the weights stand still, so the gradient
is added up over batches far larger than the run's own, until the noise scale lies well below their size.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.schedulers import Clock, Step
from gradwire.schedulers.noise_scale import NoiseScale
from gradwire.trainer.data import Feed
from gradwire.trainer.micro_batch import Untouched
from gradwire.trainer.noise import NoiseMeter
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
    world_size = trainer.strategy.data_size
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
        rank=strategy.data_rank,
        world_size=strategy.data_size,
        micro=micro,
    )
    with Untouched(trainer.model):
        for turn, batch in enumerate(feed):
            outcome = trainer.updater.differentiate(batch, trainer.clock.updates + turn, meter)
            trainer.precision.step(trainer.optimizer, finite=False)  # no update: only the loss scale learns from it
            strategy.settle(kept=False)
            for norms in outcome.norms().values() if outcome.norms is not None else ():
                average.update(norms)
            trainer.optimizer.zero_grad()
    value = average.value
    enough = value is not None and _ENOUGH * value <= size
    return Noise(value, average.noise, average.gradient, size, _ROUNDS, enough)
