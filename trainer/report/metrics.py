"""What a run measured: metrics.jsonl by column. Lines that cannot be read are counted and named, no more."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
POSITIONS = {"update": "update", "samples": "samples", "tokens": "tokens", "time": "time/unix"}  # and their keys
LATEST = 1e11  # seconds since 1970; what claims to be later is no time
_NAMED = 20  # lines that cannot be read, of which the reason is kept
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Column:
    """The values of one key.

    Args:
        lines: Places of the lines that hold it, rising.
        values: Its values there, NaN and infinities among them.
    """

    lines: Integers
    values: Floats

    @cached_property
    def finite(self) -> "Column":
        """The same without NaN and infinities."""
        kept = np.isfinite(self.values)
        return self if kept.all() else Column(self.lines[kept], self.values[kept])


@dataclass(frozen=True)
class Metrics:
    """The lines of a metrics file.

    Args:
        positions: `update`, `samples`, `tokens` and `time` (seconds since 1970) by line; NaN where a line lacks it.
        columns: Every measured number, by key.
        texts: Every text, by key: the line's place and the text.
        malformed: Number of lines that could not be read.
        reasons: Of the first of them: number in the file, from 1, and what is wrong.
    """

    positions: Mapping[str, Floats]
    columns: Mapping[str, Column]
    texts: Mapping[str, list[tuple[int, str]]]
    malformed: int = 0
    reasons: tuple[tuple[int, str], ...] = ()

    def __len__(self) -> int:
        return len(self.positions["update"])

    def dense(self, key: str) -> Floats:
        """A key's value by line; NaN where it is absent or unknown."""
        found = np.full(len(self), np.nan)
        if key in self.columns:
            found[self.columns[key].lines] = self.columns[key].values
        return found

    def not_finite(self) -> dict[str, int]:
        """How many values of each key are NaN or infinite, where any is."""
        counts = {key: int((~np.isfinite(column.values)).sum()) for key, column in self.columns.items()}
        return {key: count for key, count in counts.items() if count}


@dataclass
class _Reading:
    lines: int = 0
    numbers: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    texts: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    malformed: int = 0
    reasons: list[tuple[int, str]] = field(default_factory=list)

    def refuse(self, number: int, reason: str) -> None:
        self.malformed += 1
        if len(self.reasons) < _NAMED:
            self.reasons.append((number, reason))

    def take(self, record: Mapping[str, Any]) -> None:
        for key, value in record.items():
            number = _number(value)
            if number is not None:
                places, values = self.numbers.setdefault(key, ([], []))
                places.append(self.lines)
                values.append(number)
            elif isinstance(value, str):
                self.texts.setdefault(key, []).append((self.lines, value))
        self.lines += 1


def read_metrics(path: Path) -> Metrics:
    """Read a file of metrics; one that does not exist has no lines."""
    if not path.exists():
        return parse_metrics(())
    with path.open("rb") as file:
        return parse_metrics(file)


def parse_metrics(lines: Iterable[bytes]) -> Metrics:
    """Read lines of JSON."""
    reading = _Reading()
    for number, line in enumerate(lines, 1):
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            reading.refuse(number, f"no JSON: {error}" if line.endswith(b"\n") else "cut off")
            continue
        if not isinstance(record, dict):
            reading.refuse(number, f"expected an object, found {type(record).__name__}")
        elif not _is_update(record.get("update")):
            reading.refuse(number, f"expected the number of an update, found {str(record.get('update'))[:40]!r}")
        else:
            reading.take(record)
    return _columns(reading)


def _is_update(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _columns(reading: _Reading) -> Metrics:
    columns = {
        key: Column(np.array(places, dtype=np.int64), np.array(values, dtype=np.float64))
        for key, (places, values) in reading.numbers.items()
    }
    found = Metrics({"update": np.zeros(reading.lines)}, columns, reading.texts)
    positions = {name: found.dense(key) for name, key in POSITIONS.items()}
    time = positions["time"]
    positions["time"] = np.where((time >= 0) & (time < LATEST), time, np.nan)
    measured = {key: column for key, column in columns.items() if key not in POSITIONS.values()}
    return Metrics(positions, measured, reading.texts, reading.malformed, tuple(reading.reasons))
