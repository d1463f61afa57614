"""Batch-size schedules: factors relative to the full batch.

The plan multiplies them with the full batch and rounds to whole granules: B = max(granule, granule·round(size·factor /
granule)). They look at the start of an update, because they decide where it ends.
"""

import math
from dataclasses import dataclass, field

from gradwire.schedulers.duration import Duration
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.schedule import Constant, Schedule

__all__ = ["Constant", "LinearWarmup"]


@dataclass(frozen=True)
class LinearWarmup(Schedule):
    """Batch size linear in the samples seen, from one granule to the full batch, which it keeps from then on.

    B(s) = max(granule, size·s/W), rounded to granules; the first update is one granule.
    Source: the batch ramp of GPT-3 (Brown et al. 2020, arXiv 2005.14165, appendix B), there from 32k tokens.

    Args:
        length: How long the batch grows. In updates, it is so many updates below the full size.
    """

    length: Duration | str = field()

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", Duration.parse(self.length))

    def value(self, at: Progress) -> float:
        length = at.to_samples(self.length)
        return 1.0 if at.start >= length else at.start / length

    def monotone_until(self, at: Progress) -> float:
        return math.inf
