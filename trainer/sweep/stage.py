"""A trial in parts: what its next launch is to do, and how it waits between two of them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gradwire.trainer.sweep import files
from gradwire.trainer.sweep.errors import DamagedSweepError

FILE = "paused.json"


@dataclass(frozen=True)
class Stage:
    """A part of a trial.

    Args:
        index: Rungs that the trial has behind it.
        until: Share of the run at which this part ends; None is the run's end.
        last: Whether the trial has its result then; else it waits to be promoted.
    """

    index: int = 0
    until: float | None = None
    last: bool = True

    @property
    def stop_at(self) -> str | None:
        """What `run.stop_at` is meanwhile."""
        return None if self.until is None else f"{100 * self.until:.12g}%"


WHOLE = Stage()


@dataclass(frozen=True)
class Pause:
    """A trial that has reached a rung; written into its folder first, and from there into the ledger.

    Args:
        rung: Which, from 0.
        update: The update that it is at.
        value: What it is judged by there.
    """

    rung: int
    update: int
    value: float

    def write(self, folder: Path) -> None:
        """Write it down, at once and durably."""
        files.write(folder / FILE, json.dumps(asdict(self)) + "\n")

    @staticmethod
    def read(folder: Path, rung: int) -> "Pause | None":
        """That of a trial at this rung, if it is there.

        Raises:
            DamagedSweepError: it cannot be read.
        """
        path = folder / FILE
        try:
            pause = Pause(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise DamagedSweepError(f"{path} is damaged: remove it, and the trial is looked at anew") from error
        return pause if pause.rung == rung else None
