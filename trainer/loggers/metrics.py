"""metrics.jsonl: every measured value of a run, one JSON object a line."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from gradwire.trainer.loggers.base import Record, RunInfo

FILE = "metrics.jsonl"
ABANDONED = "metrics.abandoned.jsonl"


class MetricsFile:
    """Appends each record to metrics.jsonl in the run's folder, and takes a resumed run's overtaken lines out of it.

    Lines are strict JSON: floats as the shortest text that reads back as the same number, and what JSON has no number
    for as the strings "NaN", "Infinity" and "-Infinity".
    """

    def __init__(self) -> None:
        self._file: IO[str] | None = None

    def start(self, info: RunInfo) -> None:
        """Open the file; in a resumed run move the lines after the restored update to metrics.abandoned.jsonl."""
        if info.run_dir is None:
            return
        path = info.run_dir / FILE
        if path.exists():
            roll_back(path, info.resumed_update)
        self._file = path.open("a", encoding="utf-8")

    def log(self, record: Record) -> None:
        """Append one line."""
        if self._file is not None:
            self._file.write(to_line(record))
            self._file.flush()

    def finish(self, status: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def to_line(record: Record) -> str:
    """A record as a line of strict JSON."""
    return json.dumps({key: _encode(value) for key, value in record.items()}, allow_nan=False) + "\n"


def _encode(value: float | int | str) -> float | int | str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def roll_back(path: Path, update: int | None) -> None:
    """Keep the whole lines up to `update` (all where None) and append the others to metrics.abandoned.jsonl beside.

    The abandoned lines are durable before the file is replaced, so a kill in between loses nothing; a second roll-back
    then finds them in both files and does not add them again. A torn last line counts as abandoned.
    """
    text = path.read_bytes().decode("utf-8", errors="replace")
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and not _is_later(line, update)]
    dropped = [line.rstrip("\n") + "\n" for line in lines if not (line.endswith("\n") and not _is_later(line, update))]
    if not dropped:
        return
    _append_once(path.with_name(ABANDONED), dropped)
    _replace(path, "".join(kept))


def _is_later(line: str, update: int | None) -> bool:
    if update is None:
        return False
    try:
        record: Any = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, Mapping) and isinstance(record.get("update"), int) and record["update"] > update


def _append_once(path: Path, lines: list[str]) -> None:
    """Append lines unless the file ends with them already."""
    addition = "".join(lines)
    before = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if not before.endswith(addition):
        _replace(path, before + addition)


def _replace(path: Path, text: str) -> None:
    """Replace a file's content at once and durably."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
