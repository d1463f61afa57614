"""Batch size that grows with every update."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.batch.given import as_duration, check_start, parse_size
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.schedule import Schedule


@checked(ScheduleError)
@dataclass(frozen=True)
class LinearWarmup(Schedule):
    """Batch size linear in the samples seen, up to the full batch, which it keeps from then on.

    B(s) = start + (size − start)·s/W, rounded to granules and never below one, so that without `start` the first update
    is one granule. Source: the batch ramp of GPT-3 (Brown et al. 2020, arXiv 2005.14165, appendix B): from 32k tokens
    over the first 4 to 12e9 tokens.

    Args:
        length: How long the batch grows. In updates, it is so many updates below the full size.
        start: First batch in samples, or a text with its unit, samples or tokens (rounded to granules); null for one
            granule.

    Raises:
        ScheduleError: `start` is not a size.
    """

    length: Duration | str = field()
    start: int | Duration | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", Duration.parse(self.length))
        if self.start is not None:
            object.__setattr__(self, "start", parse_size("start of a batch warm-up", self.start))

    def value(self, at: Progress) -> float:
        return self.along(at)(at.start)

    def along(self, at: Progress) -> Callable[[int], float]:
        length = at.to_samples(self.length)
        first = 0.0 if self.start is None else at.to_samples(as_duration(self.start)) / at.peak
        way = 1 - first
        return lambda start: 1.0 if start >= length else first + way * (start / length)

    def monotone_until(self, at: Progress) -> float:
        return math.inf

    def check(self, at: Progress) -> None:
        super().check(at)
        if self.start is not None:
            check_start(as_duration(self.start), at)
