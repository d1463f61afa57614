"""What a trial is judged by: metrics that its runs wrote, and limits on them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradwire.trainer.sweep.errors import DamagedSweepError

METRICS = "metrics.jsonl"  # as loggers/metrics.py writes it, the import of which is torch's
EVALUATION = "eval/"  # begins the names of what evaluations measure
SECONDS = "trial/seconds"  # how long the trial's launches took: the one metric that no run writes


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A metric to make small or large.

    Args:
        metric: Its name in metrics.jsonl; trial/seconds is how long the trial took.
        direction: Which way is better.
        take: Which of the values that a run wrote counts.
    """

    metric: str
    direction: Literal["minimize", "maximize"] = "minimize"
    take: Literal["last", "best"] = "last"

    def of(self, values: Sequence[float]) -> float:
        """The value that counts; of several values with NaN among them the best is the best number."""
        if self.take == "last":
            return values[-1]
        numbers = [value for value in values if not math.isnan(value)] or [math.nan]
        return min(numbers) if self.direction == "minimize" else max(numbers)

    def better(self, left: float, right: float) -> bool:
        """Whether `left` is better than `right`."""
        return left < right if self.direction == "minimize" else left > right


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A limit on the last value of a metric; a trial beyond it counts as infeasible.

    Args:
        metric: Its name in metrics.jsonl, or trial/seconds.
        at_most: Largest value allowed; null is no limit.
        at_least: Smallest value allowed; null is no limit.
    """

    metric: str
    at_most: float | None = None
    at_least: float | None = None

    def excess(self, value: float) -> float:
        """By how much a value is beyond the limits; zero or less is within."""
        over = -math.inf if self.at_most is None else value - self.at_most
        under = -math.inf if self.at_least is None else self.at_least - value
        return max(over, under) if not math.isnan(value) else math.inf


def objectives_of(section: Mapping[str, Any]) -> tuple[Objective, ...]:
    """The objectives that a `sweep` section names, the first of which pruning goes by."""
    given = section["objective"]
    listed = given if isinstance(given, list) else [given]
    return tuple(Objective(metric=each) if isinstance(each, str) else Objective(**each) for each in listed)


def constraints_of(section: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """The constraints that a `sweep` section names."""
    return tuple(Constraint(**each) for each in section["constraints"])


@dataclass(frozen=True)
class Measured:
    """A metric where it was written.

    Args:
        update: Updates that the run had done.
        samples: Samples that it had seen.
        value: The value.
    """

    update: int
    samples: int
    value: float


def history(run_dir: Path, metric: str) -> list[Measured]:
    """All values of a metric that a run wrote so far, in order; a line that is still being written is left out.

    What JSON has no number for is there as a text that `float` reads; other texts are no values.
    """
    return [
        Measured(record["update"], record["samples"], value)
        for record in _records(run_dir)
        if "update" in record and (value := _number(record.get(metric))) is not None
    ]


def metrics_of(run_dir: Path) -> set[str]:
    """The metrics that a run wrote at its last update."""
    records = _records(run_dir)
    return _named(records[-1]) - {"update", "samples", "tokens"} if records else set()


def evaluated(run_dir: Path) -> set[str]:
    """The metrics that a run's evaluations wrote so far; empty before the first."""
    return {name for record in _records(run_dir) for name in _named(record) if name.startswith(EVALUATION)}


def _named(record: Mapping[str, Any]) -> set[str]:
    return {name for name, value in record.items() if _number(value) is not None}


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):  # a text or a list
        return None


def last_update(run_dir: Path) -> int:
    """The last update that a run's metrics tell of; 0 where there are none."""
    return max((int(record["update"]) for record in _records(run_dir) if "update" in record), default=0)


def last_sample(run_dir: Path) -> int:
    """The samples that a run had seen by the last line of its metrics; 0 where there is none."""
    return max((int(record["samples"]) for record in _records(run_dir) if "samples" in record), default=0)


def _records(run_dir: Path) -> list[dict[str, Any]]:
    try:
        content = (run_dir / METRICS).read_bytes()
    except FileNotFoundError:
        return []
    whole = content[: content.rfind(b"\n") + 1]
    try:
        records = [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise DamagedSweepError(f"{run_dir / METRICS} is damaged: a line of it is no JSON ({error})") from error
    return [record for record in records if isinstance(record, dict)]
