"""What an experiment reports: a table, what its paper claims and whether it shows."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from matplotlib.axes import Axes

from benchmarks.schedules.pool import Pool

Data = Mapping[str, Any]  # what was measured, as JSON holds it


@dataclass(frozen=True)
class Finding:
    """One claim against the measurement.

    Args:
        claim: What should show.
        found: What was measured.
        holds: Whether it shows; None for a figure that no claim is about.
    """

    claim: str
    found: str
    holds: bool | None = None


@dataclass(frozen=True)
class Table:
    """Rows of text under headers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


class Experiment(Protocol):
    """A question, measured once, from whose data everything that is reported follows."""

    @property
    def key(self) -> str:
        """The letter of the experiment."""
        ...

    @property
    def title(self) -> str:
        """The question."""
        ...

    @property
    def source(self) -> str:
        """The paper."""
        ...

    def measure(self, seeds: Sequence[int], quick: bool, pool: Pool) -> dict[str, Any]:
        """Do the runs."""
        ...

    def setting(self, data: Data) -> str:
        """What was run, in a few sentences."""
        ...

    def table(self, data: Data) -> Table:
        """The figures."""
        ...

    def findings(self, data: Data) -> list[Finding]:
        """The claims and whether they show."""
        ...

    def draw(self, data: Data, axes: Axes) -> None:
        """The picture."""
        ...


def mean(values: Sequence[float | None]) -> float:
    """The mean; NaN where a run diverged."""
    return math.nan if None in values else statistics.fmean(v for v in values if v is not None)


def spread(values: Sequence[float | None]) -> float:
    """The sample standard deviation over seeds; NaN where a run diverged, 0 for one seed."""
    if None in values:
        return math.nan
    return statistics.stdev(v for v in values if v is not None) if len(values) > 1 else 0.0


def shown(values: Sequence[float | None], scale: float = 1.0, digits: int = 3) -> str:
    """Mean ± spread as text."""
    diverged = sum(value is None for value in values)
    if diverged:
        return f"diverged ({diverged} of {len(values)})"
    return f"{mean(values) * scale:.{digits}f} ± {spread(values) * scale:.{digits}f}"


def signed(value: float) -> str:
    """A share as a signed percentage."""
    return f"{100 * value:+.2f} %"
