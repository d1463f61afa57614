"""A run as its folder tells it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradwire.trainer.launch.run_directory import CONFIG, STATUS
from gradwire.trainer.loggers.metrics import ABANDONED
from gradwire.trainer.loggers.metrics import FILE as METRICS
from gradwire.trainer.loggers.starts import FILE as STARTS
from gradwire.trainer.report.configuration import read_configuration
from gradwire.trainer.report.metrics import LATEST, Metrics, read_metrics
from gradwire.trainer.report.store import Kept, read_store

SOURCES = (CONFIG, STATUS, METRICS, ABANDONED, STARTS)


@dataclass(frozen=True)
class Start:
    """One start of a run, to its end.

    Args:
        began: When, in seconds since 1970.
        update: From which update it went on; None where it began anew.
        snapshot: The update of the snapshot that was read for it.
        ranks: Number of ranks.
        ended: When it ended; None where it runs, or was killed.
        status: How it ended: `done`, `preempted` or `failed`; None likewise.
    """

    began: float
    update: int | None
    snapshot: int | None
    ranks: int
    ended: float | None = None
    status: str | None = None


@dataclass(frozen=True)
class Recorded:
    """What a run's folder holds.

    Args:
        folder: The run's folder.
        name: The run's name.
        status: `done`, `preempted`, `failed` or `running` (which a killed run says too); empty where unknown.
        configuration: Its values by dotted key, as text.
        metrics: The lines that stand.
        abandoned: The lines that a restart took back.
        starts: In order.
        kept: What is in its store.
        problems: What could not be read, for people.
    """

    folder: Path
    name: str
    status: str
    configuration: Mapping[str, str]
    metrics: Metrics
    abandoned: Metrics
    starts: tuple[Start, ...]
    kept: Kept
    problems: tuple[str, ...]


def read_run(folder: Path) -> Recorded:
    """Read all that a report shows of a run; what cannot be read is named among the problems."""
    configuration, wrong = read_configuration(folder / CONFIG)
    metrics, abandoned = read_metrics(folder / METRICS), read_metrics(folder / ABANDONED)
    starts, torn = read_starts(folder / STARTS)
    url = configuration.get("checkpoint.url", "null")
    kept = read_store(folder, None if url == "null" else url)
    problems = [
        *wrong,
        *_malformed(METRICS, metrics),
        *_malformed(ABANDONED, abandoned),
        *([f"{STARTS}: {_lines(torn)} could not be read"] if torn else []),
        *([f"the store could not be read: {kept.problem}"] if kept.problem else []),
        *(f"{key}: {count} values are NaN or infinite" for key, count in metrics.not_finite().items()),
    ]
    name = configuration.get("run.name", folder.name)
    return Recorded(
        folder, name, _status(folder / STATUS), configuration, metrics, abandoned, starts, kept, tuple(problems)
    )


def _malformed(name: str, metrics: Metrics) -> list[str]:
    if not metrics.malformed:
        return []
    first = "; ".join(f"line {number}: {reason}" for number, reason in metrics.reasons[:3])
    return [f"{name}: {_lines(metrics.malformed)} could not be read and {_are(metrics.malformed)} left out ({first})"]


def _lines(count: int) -> str:
    return f"{count} line" if count == 1 else f"{count} lines"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _status(path: Path) -> str:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(record.get("status", "")) if isinstance(record, dict) else ""


def read_starts(path: Path) -> tuple[tuple[Start, ...], int]:
    """The starts of a run in order, and how many lines could not be read."""
    starts: list[Start] = []
    torn = 0
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            event = json.loads(line)
            if event["event"] == "start":
                starts.append(_start(event))
            elif event["event"] == "end" and starts and starts[-1].ended is None:
                starts[-1] = _ended(starts[-1], event)
        except (ValueError, TypeError, KeyError, RecursionError):
            torn += 1
    return tuple(starts), torn


def _start(event: Mapping[str, Any]) -> Start:
    update, snapshot = (None if event[key] is None else int(event[key]) for key in ("update", "snapshot"))
    return Start(_time(event), update, snapshot, int(event["world_size"]))


def _ended(start: Start, event: Mapping[str, Any]) -> Start:
    return replace(start, ended=_time(event), status=str(event["status"]))


def _time(event: Mapping[str, Any]) -> float:
    seconds = float(event["time"])
    if not 0 <= seconds < LATEST:
        raise ValueError(f"expected a time, found {seconds}")
    return seconds
