"""The rise to the peak."""

import math
from dataclasses import dataclass, field

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.lr.shares import check_share_of_peak
from gradwire.schedulers.schedule import Schedule


@checked(ScheduleError)
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
        check_share_of_peak("start of a warm-up", self.start)

    def value(self, at: Progress) -> float:
        length = at.to_samples(self.length)
        return 1.0 if at.end >= length else self.start + (1 - self.start) * (at.end / length)

    def decay(self, at: Progress) -> float:
        return 1.0

    def monotone_until(self, at: Progress) -> float:
        return math.inf
