"""How a sweep goes, as plain lines: for logs, and for terminals that can do no more."""

from typing import Any

from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.streams import say
from gradwire.trainer.sweep.attempt import Attempt
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.ledger import Ledger
from gradwire.trainer.sweep.result import Result


class Lines:
    """Writes a line when something happens.

    Args:
        definition: The sweep.
        ledger: Its ledger.
    """

    def __init__(self, definition: Definition, ledger: Ledger) -> None:
        self._definition, self._ledger = definition, ledger

    def begin(self) -> None:
        """Say where the sweep is, and how far."""
        done, trials = len(self._ledger.finished()), self._definition.trials()
        say(f"sweep     {self._definition.directory} ({trials} trials{f', {done} done' if done else ''})")

    def began(self, attempt: Attempt) -> None:
        """A trial was taken in hand."""
        say(f"trial {attempt.trial.number:<4} {' '.join(self._definition.space.overrides(attempt.values))}")

    def ended(self, attempt: Attempt, result: Result) -> None:
        """A trial has a result."""
        say(f"trial {attempt.trial.number:<4} {told(result, self._ledger)}")

    def look(self) -> None:
        """Nothing is shown meanwhile."""

    def finish(self, code: ExitCode) -> None:
        """Say what came of it, and what to type next."""
        if code == ExitCode.PREEMPTED:
            say(f"sweep     stopped; go on: gradwire sweep --resume {self._definition.directory}")
        say(f"look      gradwire sweep show {self._definition.directory}")


def told(result: Result, ledger: Ledger) -> str:
    """A result in a line."""
    if result.state == "complete":
        return "  ".join(
            f"{objective.metric} {number(value)}"
            for objective, value in zip(ledger.objectives, result.values, strict=True)
        )
    return f"{result.state} at update {result.update}" + (f": {result.reason}" if result.reason else "")


def number(value: Any) -> str:
    """A number as tables show it."""
    return f"{value:.5g}" if isinstance(value, float) else f"{value}"
