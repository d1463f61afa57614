"""What a run shows while it runs: a bar on a terminal, plain lines elsewhere."""

import errno
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gradwire.trainer.loggers.base import Record, RunInfo
from gradwire.trainer.loggers.peak import peak_flops_here

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

log = logging.getLogger(__name__)


class Progress:
    """Shows update, loss, learning rate, batch size, speed, time left and the age of the last checkpoint.

    A screen that went away (a closed terminal, a broken pipe) ends the showing and nothing else.
    """

    def __init__(self) -> None:
        self._alive = True
        self._info = RunInfo()
        self._bar: Bar | None = None
        self._peak: float | None = None
        self._first: tuple[float, int] | None = None
        self._checkpoint: tuple[int, float] | None = None

    def start(self, info: RunInfo) -> None:
        """Begin to measure the time left; on a terminal draw the bar."""
        self._info = info
        self._first = (time.monotonic(), info.resumed_update or 0)
        self._try(self._open)

    def log(self, record: Record) -> None:
        """Show a record; text samples come in a block of their own."""
        self._try(lambda: self._show(record))

    def finish(self, status: str) -> None:
        """Leave the terminal in order."""
        self._try(self._close)

    def _try(self, action: Callable[[], None]) -> None:
        """Do it, unless showing failed before."""
        if not self._alive:
            return
        try:
            action()
        except Exception as error:  # training does not end because nobody watches
            self._alive = False
            with suppress(Exception):
                self._close()
            if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.EIO):
                _drop_screen()
            log.warning("progress is not shown from here on: %s: %s", type(error).__name__, error)

    def _open(self) -> None:
        self._peak = self._info.peak_flops or peak_flops_here()
        if sys.stdout.isatty():
            self._bar = _bar(self._info)
            self._bar.start()

    def _close(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def _show(self, record: Record) -> None:
        line = self.line(record)
        if self._bar is None:
            _print(line)
        else:
            done, total = float(record["update"]), self._total(record)
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, description=line, refresh=True)
        if "eval/sample" in record:
            self._show_sample(record)

    def line(self, record: Record) -> str:
        """A record as one aligned line; what was not measured is left out."""
        total = self._total(record)
        parts = [f"update {record['update']:>{len(str(total))}}/{total}"]
        formats = {"train/loss": ("loss", ".3f"), "eval/loss": ("eval", ".3f"), "eval/accuracy": ("accuracy", ".3f")}
        formats |= {"lr": ("lr", ".1e"), "batch_size": ("batch", ".0f"), "skipped": ("skipped", ".0f")}
        for key, (name, form) in formats.items():
            value = record.get(key)
            if isinstance(value, int | float):
                parts.append(f"{name} {value:{form}}")
        return "  ".join(parts + self._speed(record) + self._remaining(record) + self._age(record))

    def _total(self, record: Record) -> int:
        """Updates of the run; a run that measures its batch sizes says how many it would be now."""
        return int(record.get("total_updates", self._info.total_updates))

    def _speed(self, record: Record) -> list[str]:
        speed = record.get("tokens_per_second")
        if not isinstance(speed, float):
            return []
        shown = [f"{_short(speed)} tokens/s"]
        if self._peak and self._info.flops_per_token:
            share = speed * self._info.flops_per_token / (self._peak * self._info.world_size)
            shown.append(f"mfu {share:.1%}")
        return shown

    def _remaining(self, record: Record) -> list[str]:
        if self._first is None:
            return []
        began, update = self._first
        done = int(record["update"]) - update
        left = self._total(record) - int(record["update"])
        if done <= 0 or left <= 0:
            return []
        return [f"eta {_clock((time.monotonic() - began) / done * left)}"]

    def _age(self, record: Record) -> list[str]:
        saved = record.get("checkpoint/update")
        if not isinstance(saved, int):
            return []
        if self._checkpoint is None or self._checkpoint[0] != saved:
            self._checkpoint = (saved, time.monotonic())
        return [f"saved {_clock(time.monotonic() - self._checkpoint[1])} ago"]

    def _show_sample(self, record: Record) -> None:
        text = "\n".join(f"  | {line}" for line in str(record["eval/sample"]).splitlines())
        block = f"  sample at update {record['update']}:\n{text}"
        if self._bar is None:
            _print(block)
        else:
            self._bar.console.print(block, markup=False, highlight=False)


def _bar(info: RunInfo) -> "Bar":
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False),
        console=Console(file=sys.stdout),
        auto_refresh=False,  # drawn in this thread, where a lost terminal is noticed
    )
    bar.add_task(info.name, total=info.total_updates, completed=info.resumed_update or 0)
    return bar


def _drop_screen() -> None:
    """Let what is written to a lost screen vanish: text left in its buffer would fail the flush at exit."""
    with suppress(Exception):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _print(line: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    sys.stdout.flush()


def _short(number: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f}{unit}"
    return f"{number:.0f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
