"""How a trial ended; written into its folder first, and from there into the ledger."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from gradwire.trainer.sweep import files
from gradwire.trainer.sweep.errors import DamagedSweepError

FILE = "result.json"


@dataclass(frozen=True)
class Result:
    """How a trial ended.

    Args:
        state: `complete` with the value of every objective; `pruned` by the sweep; `failed` for a reason.
        values: The objectives, averaged over the trial's runs; empty unless complete.
        excesses: By how much the trial is beyond each constraint; zero or less is within.
        update: The last update that counts.
        seconds: How long its launches took.
        reason: Why it failed; empty otherwise.
    """

    state: Literal["complete", "pruned", "failed"]
    values: list[float]
    excesses: list[float]
    update: int
    seconds: float
    reason: str = ""

    def write(self, folder: Path) -> None:
        """Write it down, at once and durably."""
        files.write(folder / FILE, json.dumps(asdict(self)) + "\n")

    @staticmethod
    def read(folder: Path) -> "Result | None":
        """The result in a trial's folder, if there is one.

        Raises:
            DamagedSweepError: it cannot be read.
        """
        path = folder / FILE
        try:
            return Result(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise DamagedSweepError(f"{path} is damaged: remove it, and the trial is looked at anew") from error
