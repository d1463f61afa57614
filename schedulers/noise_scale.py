"""Gradient noise scale: the critical batch size, measured from gradients over two sizes of batch.

The squared norm of a gradient over b samples is, in expectation, 𝒢² + 𝒮/b: the true gradient's squared norm, and the
variance of one sample's gradient summed over parameters. Two sizes of batch give both, and 𝒮/𝒢² is the batch at which
noise and gradient are equally large: smaller ones waste updates, larger ones waste samples.

Source: McCandlish et al. 2018 (arXiv 1812.06162, appendix A.1).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.errors import ScheduleError


@dataclass(frozen=True)
class Norms:
    """Squared norms of one update's gradients over few and over many samples.

    Args:
        small: Mean squared norm of the gradients over few samples; each is a mean over its samples.
        big: Squared norm of the gradient over the whole batch.
        small_size: Samples of a small gradient; where sizes b differ and have weights w, 1/Σ(w/b).
        big_size: Samples of the whole batch.

    Raises:
        ScheduleError: the sizes are not 0 < small_size < big_size.
    """

    small: float
    big: float
    small_size: float
    big_size: float

    def __post_init__(self) -> None:
        if not 0 < self.small_size < self.big_size < math.inf:
            raise ScheduleError(
                "a noise scale needs gradients over two sizes of batch, 0 < small_size < big_size; found "
                f"small_size={self.small_size!r} and big_size={self.big_size!r}: "
                "use several ranks or micro-batches, or per-example gradients"
            )

    @property
    def noise(self) -> float:
        """𝒮 = (G_s² − G_b²)/(1/B_s − 1/B_b): unbiased estimate of the trace of one sample's gradient covariance."""
        return (self.small - self.big) / (1 / self.small_size - 1 / self.big_size)

    @property
    def gradient(self) -> float:
        """𝒢² = (B_b·G_b² − B_s·G_s²)/(B_b − B_s): unbiased estimate of the true gradient's squared norm.

        A single estimate may lie below zero.
        """
        return (self.big_size * self.big - self.small_size * self.small) / (self.big_size - self.small_size)


def total(parts: Iterable[Norms]) -> Norms:
    """Norms over all parameters, from those of disjoint groups of them in the same update.

    Raises:
        ScheduleError: there is no group, or the groups are of different sizes of batch.
    """
    norms = list(parts)
    sizes = {(each.small_size, each.big_size) for each in norms}
    if len(sizes) != 1:
        raise ScheduleError(f"norms of one update share one pair of sizes; found {sorted(sizes) or 'no norms'}")
    return Norms(math.fsum(each.small for each in norms), math.fsum(each.big for each in norms), *sizes.pop())


@checked(ScheduleError)
class NoiseScale:
    """The noise scale over a run: 𝒮 and 𝒢² are smoothed each for itself, then divided.

    One update's quotient says nothing, since 𝒢² may come out near zero; the quotient of the means is sound.

    Args:
        decay: Weight that the past keeps at each measurement, from 0 to below 1.

    Attributes:
        measurements: How many were taken in.
        skipped: How many were left out, because they were not finite.

    Raises:
        ScheduleError: `decay` is out of range.
    """

    def __init__(self, decay: float = 0.95) -> None:
        if not 0 <= decay < 1:
            raise ScheduleError(f"the decay of a noise scale lies in [0, 1); found {decay!r}")
        self.decay = decay
        self.measurements = 0
        self.skipped = 0
        self._noise = 0.0
        self._gradient = 0.0
        self._weight = 0.0

    def update(self, norms: Norms) -> None:
        """Take in one measurement; one that is not finite (the step overflowed) is left out and counted."""
        noise, gradient = norms.noise, norms.gradient
        if not (math.isfinite(noise) and math.isfinite(gradient)):
            self.skipped += 1
            return
        self.measurements += 1
        self._noise = self._smoothed(self._noise, noise)
        self._gradient = self._smoothed(self._gradient, gradient)
        self._weight = self._smoothed(self._weight, 1.0)

    @property
    def value(self) -> float | None:
        """Critical batch size in samples, EMA(𝒮)/EMA(𝒢²); 0 where the smoothed 𝒮 lies below 0.

        None before the first measurement, and while the smoothed 𝒢² is not above 0: the gradient drowns in the noise.
        """
        if self._weight == 0 or self._gradient <= 0:
            return None
        return max(self._noise, 0.0) / self._gradient

    @property
    def noise(self) -> float | None:
        """Smoothed 𝒮; over B it is the variance of the gradient of B samples. None before the first measurement."""
        return self._noise / self._weight if self._weight else None

    @property
    def gradient(self) -> float | None:
        """Smoothed 𝒢². None before the first measurement."""
        return self._gradient / self._weight if self._weight else None

    def state_dict(self) -> dict[str, float]:
        """Everything that a resumed run needs, as plain numbers."""
        return {name: getattr(self, attribute) for name, attribute in _STATE.items()}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from `state_dict()`, to the last bit.

        Raises:
            ScheduleError: the state is of something else.
        """
        if state.keys() != _STATE.keys():
            raise ScheduleError(f"a noise scale's state has {', '.join(_STATE)}; found {', '.join(state) or 'nothing'}")
        for name, attribute in _STATE.items():
            setattr(self, attribute, state[name])

    def _smoothed(self, past: float, now: float) -> float:
        return self.decay * past + (1 - self.decay) * now


_STATE = {
    "noise": "_noise",
    "gradient": "_gradient",
    "weight": "_weight",
    "measurements": "measurements",
    "skipped": "skipped",
}
