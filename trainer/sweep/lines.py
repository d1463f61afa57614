"""How a sweep goes, as plain lines: for logs, and for what is no terminal."""

from gradwire.trainer.launch.streams import say
from gradwire.trainer.sweep.attempt import Attempt
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.ledger import Ledger
from gradwire.trainer.sweep.result import Result
from gradwire.trainer.sweep.stage import Pause
from gradwire.trainer.sweep.standing import number


class Lines:
    """Writes a line when something happens.

    Args:
        definition: The sweep.
        ledger: Its ledger.
    """

    def __init__(self, definition: Definition, ledger: Ledger) -> None:
        self._definition, self._ledger = definition, ledger

    def began(self, attempt: Attempt) -> None:
        """A trial was taken in hand."""
        say(f"trial {attempt.trial.number:<4} {' '.join(self._definition.space.overrides(attempt.values))}")

    def ended(self, number: int, outcome: Result | Pause) -> None:
        """A trial has a result, or waits."""
        say(f"trial {number:<4} {told(outcome, self._ledger)}")

    def look(self) -> None:
        """Nothing is shown meanwhile."""


def told(result: Result | Pause, ledger: Ledger) -> str:
    """An outcome in a line."""
    if isinstance(result, Pause):
        return f"waits at update {result.update}: {ledger.objectives[0].metric} {number(result.value)}"
    if result.state == "complete":
        values = zip(ledger.objectives, result.values, strict=True)
        return "  ".join(f"{objective.metric} {number(value)}" for objective, value in values)
    return f"{result.state} at update {result.update}" + (f": {result.reason}" if result.reason else "")
