"""metrics.jsonl: every measured value of a run, one JSON object a line."""

import io
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from gradwire.trainer.loggers.base import Record, RunInfo

FILE = "metrics.jsonl"
ABANDONED = "metrics.abandoned.jsonl"
_JOURNAL = ".metrics.roll-back"


class MetricsFile:
    """Appends each record to metrics.jsonl in the run's folder, and takes a resumed run's overtaken lines out of it.

    Lines are strict JSON: floats as the shortest text that reads back as the same number, and what JSON has no number
    for as the strings "NaN", "Infinity" and "-Infinity". `time/unix` is when a line was written: seconds since 1970.

    Args:
        now: That clock.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._file: IO[str] | None = None

    def start(self, info: RunInfo) -> None:
        """Open the file; the lines after the restored update (all, where the run starts anew) are abandoned."""
        if info.run_dir is None:
            return
        path = info.run_dir / FILE
        path.touch()
        roll_back(path, info.kept_update)
        self._file = path.open("a", encoding="utf-8")

    def log(self, record: Record) -> None:
        """Append one line."""
        if self._file is not None:
            self._file.write(to_line({**record, "time/unix": round(self._now(), 3)}))
            self._file.flush()

    def finish(self, status: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def to_line(record: Record) -> str:
    """A record as a line of strict JSON."""
    return json.dumps({key: _encode(value) for key, value in record.items()}, allow_nan=False) + "\n"


def _encode(value: Any) -> float | int | str:
    plain: float | int | str = value.item() if hasattr(value, "item") else value  # a scalar of numpy or torch
    if isinstance(plain, float) and not math.isfinite(plain):
        return "NaN" if math.isnan(plain) else "Infinity" if plain > 0 else "-Infinity"
    return plain


def roll_back(path: Path, update: int) -> None:
    """Move the lines after `update`, and a torn last one, from the end of a file to metrics.abandoned.jsonl beside it.

    A journal names the sizes of both files before the first of them changes, and goes when both have changed. A
    roll-back that was killed is thereby completed by the next one, whichever update that is for: no line is lost and
    none is there twice.
    """
    _complete(path)
    content = path.read_bytes()
    kept = _kept_size(content, update)
    if kept < len(content):
        _write_journal(path, kept)
        _complete(path)


def _kept_size(content: bytes, update: int) -> int:
    """Bytes before the first line that is later than `update` or torn."""
    size = 0
    for line in io.BytesIO(content):
        if not line.endswith(b"\n") or _is_later(line, update):
            break
        size += len(line)
    return size


def _is_later(line: bytes, update: int) -> bool:
    try:
        record: Any = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, Mapping) and isinstance(record.get("update"), int) and record["update"] > update


def _write_journal(path: Path, kept: int) -> None:
    abandoned = path.with_name(ABANDONED)
    sizes = {"kept": kept, "abandoned": abandoned.stat().st_size if abandoned.exists() else 0}
    temporary = path.with_name(f"{_JOURNAL}.new")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(sizes, file)
        _flush(file)
    temporary.replace(path.with_name(_JOURNAL))
    _flush_folder(path.parent)


def _complete(path: Path) -> None:
    """Do what the journal says, if there is one; any part of it may be done already."""
    journal = path.with_name(_JOURNAL)
    if not journal.exists():
        return
    sizes = json.loads(journal.read_text(encoding="utf-8"))
    with path.open("r+b") as file:
        file.seek(sizes["kept"])
        if tail := file.read():
            _append(path.with_name(ABANDONED), sizes["abandoned"], tail if tail.endswith(b"\n") else tail + b"\n")
            file.truncate(sizes["kept"])
            _flush(file)
    journal.unlink()
    _flush_folder(path.parent)


def _append(path: Path, size: int, addition: bytes) -> None:
    """Make a file its first `size` bytes and the addition, durably."""
    with path.open("ab") as file:
        file.truncate(size)
        file.write(addition)
        _flush(file)
    _flush_folder(path.parent)


def _flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
