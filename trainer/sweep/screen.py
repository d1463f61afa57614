"""How a sweep goes, as a table on a terminal that is drawn again while it goes."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradwire.trainer.sweep.attempt import Attempt
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.ledger import Ledger
from gradwire.trainer.sweep.result import Result
from gradwire.trainer.sweep.stage import Pause
from gradwire.trainer.sweep.standing import Standing, headings, rows, standings

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

_EVERY = 1.0  # seconds between two drawings
_UNFINISHED = ("running", "paused", "open")
_MOST = 15  # trials in the table: those under way, then the best, then the latest


class Screen:
    """Draws the table.

    Args:
        definition: The sweep.
        ledger: Its ledger.
    """

    def __init__(self, definition: Definition, ledger: Ledger) -> None:
        self._definition, self._ledger = definition, ledger
        self._live: Live | None = None
        self._drawn = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While this is open the table is on the terminal; it stays there as it was last."""
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(file=sys.stdout), auto_refresh=False) as self._live:
            try:
                yield
            finally:
                self._draw()

    def began(self, attempt: Attempt) -> None:
        """A trial was taken in hand."""
        self._draw()

    def ended(self, number: int, outcome: Result | Pause) -> None:
        """A trial has a result, or waits."""
        self._draw()

    def look(self) -> None:
        """Draw, if it was not done a moment ago."""
        if time.monotonic() - self._drawn >= _EVERY:
            self._draw()

    def _draw(self) -> None:
        if self._live is not None:
            trials = standings(self._definition, self._ledger)
            self._live.update(picture(trials, self._definition, self._ledger, _MOST), refresh=True)
            self._drawn = time.monotonic()


def picture(trials: list[Standing], definition: Definition, ledger: Ledger, most: int | None = None) -> "Group":
    """Where the sweep stands in a line, and a table of trials: of at most so many, the most telling."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings(ledger):
        table.add_column(Text(heading), justify="left" if heading in ("state", "") else "right")
    for cells in rows(_telling(trials, ledger, most), ledger):
        table.add_row(*map(Text, cells))
    return Group(Text(summary(trials, definition, ledger)), table)


def summary(trials: list[Standing], definition: Definition, ledger: Ledger) -> str:
    """How many trials are where, and how long the rest may take."""
    planned = definition.trials()
    states = [each.state for each in trials]
    counts = [(state, states.count(state)) for state in (*_UNFINISHED, "pruned", "failed")]
    finished = sum(state not in _UNFINISHED for state in states)
    parts = [f"{finished}/{planned} trials", *(f"{count} {state}" for state, count in counts if count)]
    times = [each.seconds for each in trials if each.seconds is not None]
    if times and finished < planned:
        left = sum(times) / len(times) * (planned - finished) / definition.parallel
        parts.append(f"about {_clock(left)} left")
    best = [each.number for each in trials if each.best]
    parts += [f"best: trial {', '.join(map(str, best))}"] if best else []
    return "  ".join(parts)


def _telling(trials: list[Standing], ledger: Ledger, most: int | None) -> list[Standing]:
    if most is None or len(trials) <= most:
        return trials
    first = ledger.objectives[0]
    sign = 1 if first.direction == "minimize" else -1

    def rank(each: Standing) -> tuple[bool, bool, float]:
        value = each.objectives[first.metric]
        known = each.state == "complete" and value is not None
        return (
            each.state not in _UNFINISHED,
            not known,
            sign * value if known and value is not None else -each.number,
        )

    return sorted(sorted(trials, key=rank)[:most], key=lambda each: each.number)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
