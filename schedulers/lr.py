"""Learning-rate schedules: factors relative to the peak learning rate.

A warm-up looks at the end of an update and a decay at its start. In updates of equal size that is (s+1)/W while
warming up and (T−s)/(T−W) while decaying: the first update and the last one have a rate above zero.
"""

import math
from dataclasses import dataclass, field

from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.schedule import Constant, Joined, Schedule

__all__ = ["Constant", "Cosine", "LinearDecay", "Warmup", "WarmupConstant", "WarmupCosine", "WarmupLinearDecay"]


@dataclass(frozen=True)
class Warmup(Schedule):
    """Linear rise to the peak: start + (1 − start)·(s+1)/W in updates of equal size; the peak from then on.

    Source: gradual warm-up, Goyal et al. 2017 (arXiv 1706.02677, section 2.2), raised at every update. There it starts
    at the rate of the reference batch: `start` is then reference / batch.

    Args:
        length: How long the rate rises.
        start: Factor that the rise begins from, 0 to 1; the first update is one step above it.

    Raises:
        ScheduleError: `start` is not between 0 and 1.
    """

    length: Duration | str = field()
    start: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", Duration.parse(self.length))
        _check_fraction("start of a warm-up", self.start)

    def value(self, at: Progress) -> float:
        length = at.to_samples(self.length)
        return 1.0 if at.end >= length else self.start + (1 - self.start) * (at.end / length)

    def monotone_until(self, at: Progress) -> float:
        return math.inf


@dataclass(frozen=True)
class LinearDecay(Schedule):
    """Linear fall from the peak: floor + (1 − floor)·(T−s)/T, over what is left of the run.

    Source: linear decay to zero (D2Z), Bergsma et al. 2025 (arXiv 2502.15938).
    The last update is above the floor; the point after it is the floor.

    Args:
        floor: Factor at the end, 0 to 1.

    Raises:
        ScheduleError: `floor` is not between 0 and 1.
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_fraction("floor of a linear decay", self.floor)

    def value(self, at: Progress) -> float:
        return self.floor + (1 - self.floor) * _left(at)

    def monotone_until(self, at: Progress) -> float:
        return math.inf


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine down from the peak: floor + (1 − floor)·(1 + cos(π·s/T))/2, over what is left of the run.

    Source: Loshchilov & Hutter 2017 (SGDR, arXiv 1608.03983, equation 5), one cycle without restarts.

    Args:
        floor: Factor at the end, 0 to 1.

    Raises:
        ScheduleError: `floor` is not between 0 and 1.
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_fraction("floor of a cosine", self.floor)

    def value(self, at: Progress) -> float:
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * (1 - _left(at)))) / 2


class WarmupLinearDecay(Joined):
    """Linear warm-up, then linear decay until the end of the run: `Warmup(warmup).then(LinearDecay(floor))`.

    Source: Bergsma et al. 2025 (arXiv 2502.15938).

    Args:
        warmup: How long the rate rises; `0%` for no warm-up.
        floor: Factor at the end of the run, 0 to 1.
    """

    def __init__(self, warmup: Duration | str = "10%", floor: float = 0.0) -> None:
        super().__init__(Warmup(warmup), LinearDecay(floor))


class WarmupCosine(Joined):
    """Linear warm-up, then half a cosine until the end of the run: `Warmup(warmup).then(Cosine(floor))`.

    Source: Loshchilov & Hutter 2017 (arXiv 1608.03983); to a tenth of the peak as in GPT-3
    (Brown et al. 2020, arXiv 2005.14165, appendix B).

    Args:
        warmup: How long the rate rises; `0%` for no warm-up.
        floor: Factor at the end of the run, 0 to 1.
    """

    def __init__(self, warmup: Duration | str = "10%", floor: float = 0.1) -> None:
        super().__init__(Warmup(warmup), Cosine(floor))


class WarmupConstant(Joined):
    """Linear warm-up, then the peak until the end of the run: `Warmup(warmup).then(Constant())`.

    Source: Goyal et al. 2017 (arXiv 1706.02677, section 2.2) without its later steps.

    Args:
        warmup: How long the rate rises; `0%` for no warm-up.
        start: Factor that the rise begins from, 0 to 1.
    """

    def __init__(self, warmup: Duration | str = "10%", start: float = 0.0) -> None:
        super().__init__(Warmup(warmup, start), Constant())


def _left(at: Progress) -> float:
    """The share of the piece that is left when the update starts."""
    return (at.total - at.start) / at.total if at.total else 0.0


def _check_fraction(name: str, factor: float) -> None:
    if not 0 <= factor <= 1:
        raise ScheduleError(f"the {name} is a share of the peak, between 0 and 1; found {factor!r}")
