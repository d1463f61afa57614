"""What a run shows while it runs: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import TYPE_CHECKING

import torch

from gradwire.trainer.loggers.base import Record, RunInfo

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_PEAK_FLOPS = {  # dense bf16/fp16 arithmetic of one device, FLOP/s, as the vendors state it
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "V100": 125e12,
    "T4": 65e12,
}


def peak_flops() -> float | None:
    """What one of this machine's GPUs can compute a second in 16-bit formats; None where it is not known."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    return next((peak for model, peak in _PEAK_FLOPS.items() if model in name), None)


class Progress:
    """Shows update, loss, learning rate, batch size, speed, time left and the age of the last checkpoint."""

    def __init__(self) -> None:
        self._info = RunInfo()
        self._bar: Bar | None = None
        self._peak: float | None = None
        self._first: tuple[float, int] | None = None
        self._checkpoint: tuple[int, float] | None = None

    def start(self, info: RunInfo) -> None:
        """Say what starts."""
        self._info = info
        self._peak = peak_flops()
        self._first = (time.monotonic(), info.resumed_update or 0)
        if sys.stdout.isatty():
            self._bar = _bar(info)

    def log(self, record: Record) -> None:
        """Show a record; text samples come in a block of their own."""
        line = self.line(record)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=float(record["update"]), description=line)
        else:
            _print(line)
        if "eval/sample" in record:
            self._show_sample(record)

    def finish(self, status: str) -> None:
        """Leave the terminal in order."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def line(self, record: Record) -> str:
        """A record as one aligned line; what was not measured is left out."""
        total = self._info.total_updates
        parts = [f"update {record['update']:>{len(str(total))}}/{total}"]
        formats = {"train/loss": ("loss", ".3f"), "eval/loss": ("eval", ".3f"), "eval/accuracy": ("accuracy", ".3f")}
        formats |= {"lr": ("lr", ".1e"), "batch_size": ("batch", "d"), "skipped": ("skipped", "d")}
        for key, (name, form) in formats.items():
            value = record.get(key)
            if isinstance(value, int | float):
                parts.append(f"{name} {value:{form}}")
        return "  ".join(parts + self._speed(record) + self._remaining(record) + self._age(record))

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
        left = self._info.total_updates - int(record["update"])
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
        BarColumn(bar_width=20), TextColumn("{task.description}", markup=False), console=Console(file=sys.stdout)
    )
    bar.add_task(info.name, total=info.total_updates, completed=info.resumed_update or 0)
    bar.start()
    return bar


def _print(line: str) -> None:
    sys.stdout.write(line.encode(sys.stdout.encoding or "utf-8", "replace").decode(sys.stdout.encoding or "utf-8") + "\n")
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
