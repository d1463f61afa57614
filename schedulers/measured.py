"""Rules that measure: batch sizes that follow the gradient noise scale, as functions of a log of what was measured.

Only what changed something is in the log. Given the log everything is pure, so a resumed run repeats its decisions.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.batch.given import check_positive, check_start
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.schedule import Schedule
from gradwire.schedulers.trajectory import whole_batch


@checked(ScheduleError)
@dataclass(frozen=True)
class NoiseScaleBatch(Schedule):
    """The global batch follows the measured noise scale, between `start` and the full batch.

    A batch far below the noise scale wastes updates, one far above it wastes samples. The noise scale grows over a run,
    and the batch with it. It changes only when the noise scale has moved away from it by the factor `hysteresis`.
    Source: McCandlish et al. 2018 (arXiv 1812.06162, sections 2.2 and 2.3).

    Args:
        start: Batch in samples before anything is measured, and the smallest.
        hysteresis: Factor by which the noise scale has to differ from the batch before the batch changes; above 1.
        ratio: Batch over noise scale; 1 takes about twice the fewest updates and twice the fewest samples.

    Raises:
        ScheduleError: a parameter is out of range.
    """

    start: int
    hysteresis: float = 1.4
    ratio: float = 1.0

    measures = True

    def __post_init__(self) -> None:
        check_measurable(self.start)
        check_positive("start of a measured batch", self.start)
        if not self.hysteresis > 1:
            raise ScheduleError(f"hysteresis is a factor above 1, as in 1.4; found {self.hysteresis!r}")
        if not self.ratio > 0:
            raise ScheduleError(f"ratio is the batch over the noise scale, a number above 0; found {self.ratio!r}")

    def value(self, at: Progress) -> float:
        size, granule = float(self.start), at.horizon.granule
        for noise_scale in measured_before(at):
            wanted = min(max(self.ratio * noise_scale, self.start), at.peak)
            if max(wanted / size, size / wanted) >= self.hysteresis:
                size = min(whole_batch(wanted, granule), at.peak)
        return size / at.peak

    def monotone_until(self, at: Progress) -> float:
        return next_measurement(at)

    def check(self, at: Progress) -> None:
        check_start(Duration(self.start, "samples"), at)


def measured_before(at: Progress) -> Iterator[float]:
    """The noise scales measured in this piece until an update starts, oldest first."""
    for entry in at.horizon.noise:
        if at.offset <= entry.samples <= at.offset + at.start:
            yield entry.noise_scale


def next_measurement(at: Progress) -> float:
    """The sample of the piece at which the log's next entry takes effect."""
    later = (entry.samples - at.offset for entry in at.horizon.noise)
    return next((samples for samples in later if samples > at.start), math.inf)


def check_measurable(start: int) -> None:
    """Refuse a first batch from which no noise scale can be measured.

    Raises:
        ScheduleError: it is a single sample, which has no smaller gradient to compare with.
    """
    if start == 1:
        raise ScheduleError("a noise scale is measured in batches of two samples or more; found start=1: take start=2")
