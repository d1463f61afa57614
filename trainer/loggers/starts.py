"""starts.jsonl: when a run was started, from where it went on, and how it ended; one JSON object a line."""

import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradwire.trainer.loggers.base import Record, RunInfo

FILE = "starts.jsonl"


class StartsFile:
    """Appends a line at each start of a run and at each end; one that was killed has no end.

    `{"event": "start", "time": …, "update": 40, "snapshot": 32, "world_size": 2, "host": …}` went on from update 40, to
    which the journal led from the snapshot of update 32; both are null where the run began anew.
    `{"event": "end", "time": …, "update": 80, "status": "done"}` names the last update of which something was logged.

    Args:
        now: Seconds since 1970.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._path: Path | None = None
        self._update = 0

    def start(self, info: RunInfo) -> None:
        """The run starts, or continues."""
        self._path = None if info.run_dir is None else info.run_dir / FILE
        self._update = info.resumed_update or 0
        place = {"update": info.resumed_update, "snapshot": info.snapshot_update}
        self._append({"event": "start", **place, "world_size": info.world_size, "host": socket.gethostname()})

    def log(self, record: Record) -> None:
        """Remember how far it got."""
        self._update = int(record["update"])

    def finish(self, status: str) -> None:
        """The run ends."""
        with suppress(OSError):  # a full disk does not change how the run went
            self._append({"event": "end", "update": self._update, "status": status})

    def _append(self, event: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**event, "time": round(self._now(), 3)}) + "\n")
