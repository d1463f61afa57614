"""A trial's folder: what it runs with, what was launched, and how it ended. One controller at a time holds it."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.trainer.launch.run_directory import CONFIG, STATUS
from gradwire.trainer.sweep import files
from gradwire.trainer.sweep.errors import DamagedSweepError
from gradwire.trainer.sweep.objectives import METRICS, last_update

TRIALS, STORE = "trials", "checkpoints"
VALUES, LAUNCHES, OUTPUT, HELD = "trial.json", "launches.jsonl", "output.log", ".controller"


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep.

    Args:
        number: Its number.
        folder: Its folder, which is its run's folder too where it has a single run.
        runs: The folders of its runs, one for each seed.
    """

    number: int
    folder: Path
    runs: tuple[Path, ...]

    @staticmethod
    def of(sweep: Path, number: int, seeds: int) -> "Trial":
        """A trial of the sweep in a folder."""
        folder = sweep / TRIALS / str(number)
        return Trial(number, folder, (folder,) if seeds == 1 else tuple(folder / f"seed-{i}" for i in range(seeds)))

    def hold(self) -> Callable[[], None] | None:
        """Claim the trial for this controller until it ends or calls what is returned; None where another has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / HELD, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return lambda: os.close(descriptor)

    def held(self) -> bool:
        """Whether a controller has the trial in hand at this moment."""
        try:
            descriptor = os.open(self.folder / HELD, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def describe(self, values: Mapping[str, Any], overrides: list[str]) -> None:
        """Write down what the trial runs with.

        Raises:
            DamagedSweepError: it ran with something else before.
        """
        path = self.folder / VALUES
        record = {"number": self.number, "values": dict(values), "overrides": overrides}
        if path.exists() and _values(path) != json.loads(json.dumps(record["values"])):
            raise DamagedSweepError(
                f"{path} has other values than the ledger has for this trial, so a part of the ledger is lost, or the "
                f"folder is another trial's. Put the ledger back as it was, or move {self.folder} away: the trial then "
                "begins anew"
            )
        files.write(path, json.dumps(record, indent=2) + "\n")

    def reached(self) -> int:
        """The last update that one of its runs tells of."""
        return max(map(last_update, self.runs))

    def forget(self) -> None:
        """Remove its checkpoints: nothing begins with them any more."""
        for run_dir in self.runs:
            shutil.rmtree(run_dir / STORE, ignore_errors=True)  # another controller may be at it

    def note_start(self, run: int) -> None:
        """Write down that a run is being launched; and when the last launch was seen alive, if nobody saw its end."""
        before = self.launches()
        if before and "start" in before[-1]:
            last = int(before[-1]["run"])
            self._note({"run": last, "end": max(self._seen(last), before[-1]["start"]), "code": None})
        self._note({"run": run, "start": time.time()})

    def note_end(self, run: int, code: int) -> None:
        """Write down that a launch ended."""
        self._note({"run": run, "end": time.time(), "code": code})

    def _note(self, record: Mapping[str, float | None]) -> None:
        files.append(self.folder / LAUNCHES, json.dumps(record) + "\n")

    def launches(self) -> list[dict[str, float]]:
        """What was written down about launches, in order."""
        try:
            lines = (self.folder / LAUNCHES).read_text().splitlines()
        except FileNotFoundError:
            return []
        return [record for line in lines if (record := _record(line)) is not None]

    def seconds(self) -> float:
        """How long the launches took; one whose end nobody saw counts until its last line of metrics."""
        total, begun = 0.0, None
        for record in self.launches():
            if begun is not None and "end" in record:
                total += record["end"] - begun["start"]
            begun = record if "start" in record else None
        return total if begun is None else total + max(0.0, self._seen(int(begun["run"])) - begun["start"])

    def _seen(self, run: int) -> float:
        try:
            return (self.runs[run] / METRICS).stat().st_mtime
        except OSError:
            return 0.0


def _values(path: Path) -> Any:
    """The values that a trial's file tells of; None where it cannot be read."""
    try:
        return json.loads(path.read_text())["values"]
    except (ValueError, KeyError, TypeError):
        return None


def _record(line: str) -> dict[str, float] | None:
    """What a line says; None where it was torn, as by a full disk."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "run" in record else None


def status_of_run(run_dir: Path) -> dict[str, Any]:
    """What a run's folder says about how the run stands; empty where it says nothing."""
    try:
        status = json.loads((run_dir / STATUS).read_text())
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) and (run_dir / CONFIG).exists() else {}
