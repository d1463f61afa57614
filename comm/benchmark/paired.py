"""Ratios of paired measurements with their uncertainty."""

import random
import statistics
from collections.abc import Sequence

DRAWS = 2000


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median of paired ratios with its 95 % bootstrap interval."""
    chooser = random.Random(0)
    medians = sorted(statistics.median(chooser.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return statistics.median(ratios), medians[DRAWS // 40], medians[DRAWS - DRAWS // 40 - 1]


def compare(times: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """Median of `times` over `others`, round by round, with its 95 % bootstrap interval."""
    return interval([own / other for own, other in zip(times, others, strict=True)])
