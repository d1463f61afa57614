"""Schedules that rise and fall in one piece, because their parts are measured from the end of the run."""

import math
from dataclasses import dataclass
from typing import Literal

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError, ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.lr.shares import check_share_of_peak, down_to, last_samples
from gradwire.schedulers.schedule import Schedule

Shape = Literal["linear", "sqrt", "cosine"]


@checked(ScheduleError)
@dataclass(frozen=True)
class OneCycle(Schedule):
    """Half a cosine up to the peak and half a cosine down, over the run.

    Up: start + (1 − start)·(1 − cos(π·s/R))/2; down: floor + (1 − floor)·(1 + cos(π·(s−R)/(T−R)))/2. Source: Smith &
    Topin 2017 (arXiv 1708.07120), who draw straight lines; this is the cosine form of torch's `OneCycleLR`, whose
    defaults these are (div_factor 25, final_div_factor 1e4), without its cycle of the momentum.

    Args:
        rise: How long the rate rises, R.
        start: Factor that the rise begins from, 0 to 1.
        floor: Factor at the end of the run, 0 to 1.

    Raises:
        ScheduleError: `start` or `floor` is not between 0 and 1.
    """

    rise: Duration | str = "30%"
    start: float = 0.04
    floor: float = 4e-6

    def __post_init__(self) -> None:
        object.__setattr__(self, "rise", Duration.parse(self.rise))
        check_share_of_peak("start of a cycle", self.start)
        check_share_of_peak("floor of a cycle", self.floor)

    def value(self, at: Progress) -> float:
        rise = at.to_samples(self.rise)
        if at.start < rise:
            return down_to(self.start, (1 - math.cos(math.pi * min(at.end / rise, 1.0))) / 2)
        return down_to(self.floor, (1 + math.cos(math.pi * _share(at.start - rise, at.total - rise))) / 2)

    def decay(self, at: Progress) -> float:
        return 1.0 if at.start < at.to_samples(self.rise) else self.value(at)

    def monotone_until(self, at: Progress) -> float:
        rise = at.to_samples(self.rise)
        return rise if at.start < rise else math.inf

    def check(self, at: Progress) -> None:
        rise = at.to_samples(self.rise)
        if rise > at.total:
            raise PlanError(
                f"the cycle rises for {at.said(self.rise)}, but {at.room}: shorten the rise or lengthen the run"
            )


@checked(ScheduleError)
@dataclass(frozen=True, init=False)
class WarmupStableDecay(Schedule):
    """Linear warm-up, the peak until shortly before the end of the run, then a fall (WSD, trapezoid).

    With x from 0 to 1 over the fall: floor + (1 − floor)·(1−x, 1−√x or (1 + cos(π·x))/2). Until the fall nothing
    depends on the length of the run (unless `warmup` is in per cents): a run can be continued from any stable point,
    and only the fall moves. Source: MiniCPM (Hu et al. 2024, arXiv 2404.06395); Hägele et al. 2024
    (arXiv 2405.18392), who find 1 − √x best and a fall of 10 to 20 % enough.

    Args:
        warmup: How long the rate rises; `0%` for no warm-up.
        decay: How long the rate falls: the last so much of the run.
        shape: How it falls: linear, sqrt or cosine.
        floor: Factor at the end of the run, 0 to 1.

    Raises:
        ScheduleError: `floor` is not between 0 and 1, or `shape` is another one.
    """

    warmup: Duration
    last: Duration
    shape: Shape
    floor: float

    def __init__(
        self,
        warmup: Duration | str = "5%",
        decay: Duration | str = "20%",  # kept as `last`, because `decay` is a method of schedules
        shape: Shape = "sqrt",
        floor: float = 0.0,
    ) -> None:
        check_share_of_peak("floor of a warmup-stable-decay schedule", floor)
        parts = {"warmup": Duration.parse(warmup), "last": Duration.parse(decay), "shape": shape, "floor": floor}
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    def value(self, at: Progress) -> float:
        warmup = at.to_samples(self.warmup)
        return at.end / warmup if at.end < warmup else self.decay(at)

    def decay(self, at: Progress) -> float:
        fall = last_samples(at, self.last)
        x = _share(at.start - (at.total - fall), fall)
        match self.shape:
            case "linear":
                return down_to(self.floor, 1 - x)
            case "sqrt":
                return down_to(self.floor, 1 - math.sqrt(x))
            case "cosine":
                return down_to(self.floor, (1 + math.cos(math.pi * x)) / 2)

    def monotone_until(self, at: Progress) -> float:
        stable = at.total - last_samples(at, self.last)
        return stable if at.start < stable else math.inf

    def check(self, at: Progress) -> None:
        warmup, fall = at.to_samples(self.warmup), last_samples(at, self.last)
        if warmup + fall > at.total:
            raise PlanError(
                f"the warmup of {at.said(self.warmup)} and the decay of {at.said(self.last)} do not fit together, for "
                f"{at.room}: shorten them or lengthen the run"
            )


def _share(done: int, whole: int) -> float:
    """The share of a fall that is done: 0 before it, 1 after it, and 1 where there is none."""
    if whole <= 0:
        return 0.0 if done < 0 else 1.0
    return min(max(done / whole, 0.0), 1.0)
