"""Batch sizes that are written down stage by stage."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Literal

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.batch.given import check_granule
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError, ScheduleError
from gradwire.schedulers.horizon import Progress
from gradwire.schedulers.schedule import Schedule

StageUnit = Literal["samples", "tokens"]


@checked(ScheduleError)
@dataclass(frozen=True)
class Staged(Schedule):
    """Batch sizes by stages, `0:768 250e9:1536`: each holds from its threshold on.

    Source: batches that large runs raise at given places, as Llama 3 405B from 4e6 tokens to 8e6 after 252e6 and to
    16e6 after 2.87e12 (Grattafiori et al. 2024, arXiv 2407.21783, section 3.4.1).

    Args:
        stages: Thresholds and sizes, `SEEN:SIZE SEEN:SIZE …`: thresholds rise strictly from 0 and are counted from the
            start of the piece; sizes are in samples, the largest of them the full batch.
        unit: Unit of the thresholds, samples or tokens.

    Raises:
        ScheduleError: `stages` cannot be read, thresholds do not rise strictly from 0, or `unit` is unknown.
    """

    stages: str
    unit: StageUnit
    parsed: tuple[tuple[float, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parsed", tuple(_stage(stage, self.stages) for stage in self.stages.split() or [""]))
        thresholds = [threshold for threshold, _ in self.parsed]
        if thresholds[0] != 0:
            raise ScheduleError(f"the first stage begins at 0; found {thresholds[0]:g} in {self.stages!r}")
        for before, after in itertools.pairwise(thresholds):
            if before >= after:
                raise ScheduleError(
                    f"the thresholds of stages rise strictly; found {after:g} after {before:g} in {self.stages!r}"
                )

    def value(self, at: Progress) -> float:
        return next(size for start, size in reversed(self._in_samples(at)) if at.start >= start) / at.peak

    def monotone_until(self, at: Progress) -> float:
        return next((start for start, _ in self._in_samples(at) if start > at.start), math.inf)

    def check(self, at: Progress) -> None:
        stages = self._in_samples(at)
        largest = max(size for _, size in stages)
        if largest != at.peak:
            raise PlanError(
                f"the largest stage has {largest} samples and the full batch is {at.peak:g}, which must be the same: "
                f"set batch.size={largest} (in Python: {largest} * Staged(…)), or change the stages"
            )
        for (before, _), (start, size) in itertools.pairwise(((-1, 0), *stages)):
            check_granule("size of a stage", size, at)
            if not before < start < at.total:
                raise PlanError(
                    f"the stage of {size} never comes: it begins after {start} samples, the one before it after "
                    f"{max(before, 0)}, and {at.room}: "
                    "lower the threshold or lengthen the run"
                )

    def _in_samples(self, at: Progress) -> list[tuple[int, int]]:
        return [(at.to_samples(Duration(start, self.unit)), size) for start, size in self.parsed]


def _stage(stage: str, stages: str) -> tuple[float, int]:
    """Threshold and size of one stage."""
    threshold, _, size = stage.partition(":")
    try:
        start, samples = float(threshold), int(size)
    except ValueError:
        start, samples = math.nan, 0
    if not (0 <= start < math.inf) or samples < 1:
        raise ScheduleError(
            f"stages are SEEN:SIZE, a threshold from 0 on and a whole number of samples from 1 on; found {stage!r} in "
            f"{stages!r}: write stages as in '0:768 250e9:1536'"
        )
    return start, samples
