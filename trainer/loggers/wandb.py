"""Weights & Biases."""

import logging
import os
from pathlib import Path
from typing import Any, Literal

from gradwire.trainer.loggers.base import Record, RunInfo

log = logging.getLogger("gradwire")
_RUN_ID = "wandb-run-id"


class Wandb:
    """Logs to Weights & Biases; a resumed run continues the same wandb run. Its failures warn and never stop training.

    Args:
        mode: `auto` logs where the user is logged in and nothing elsewhere; `on` logs online where the user is logged
            in and offline elsewhere (`wandb sync` uploads it later); `offline` never connects.
        project: Project to log to.
        entity: Team or user; null takes the user's own.
        group: Runs of one group are shown together; null is none.
    """

    def __init__(
        self,
        mode: Literal["auto", "on", "offline"] = "auto",
        project: str = "gradwire",
        entity: str | None = None,
        group: str | None = None,
    ) -> None:
        self._mode = mode
        self._project = project
        self._entity = entity
        self._group = group
        self._run: Any = None

    def start(self, info: RunInfo) -> None:
        """Begin the wandb run, or continue the one that this run directory names."""
        logged_in = is_logged_in()
        if self._mode == "auto" and not logged_in:
            return
        online = logged_in and self._mode != "offline"
        try:
            self._run = self._init(info, "online" if online else "offline")
        except Exception as error:  # whatever is wrong with the service, the training goes on
            log.warning("wandb could not start and is left out: %s", error)

    def _init(self, info: RunInfo, mode: Literal["online", "offline"]) -> Any:
        import wandb

        folder = info.run_dir or Path.cwd()
        return wandb.init(
            project=self._project,
            entity=self._entity,
            group=self._group,
            name=info.name,
            dir=str(folder),
            id=_run_id(info.run_dir),
            resume="allow",
            config=dict(info.config),
            mode=mode,
            settings=wandb.Settings(silent=True),
        )

    def log(self, record: Record) -> None:
        """Log a record at its update."""
        if self._run is None:
            return
        try:
            self._run.log(dict(record), step=int(record["update"]))
        except Exception as error:
            log.warning("wandb failed and is left out from here on: %s", error)
            self._run = None

    def finish(self, status: str) -> None:
        """End the wandb run; a preempted one is marked as such by its exit code."""
        if self._run is None:
            return
        try:
            self._run.finish(exit_code={"done": 0, "preempted": 75}.get(status, 1))
        except Exception as error:
            log.warning("wandb could not finish: %s", error)
        self._run = None


def is_logged_in() -> bool:
    """Whether wandb would find an API key: in the environment or in the user's netrc file."""
    if os.environ.get("WANDB_MODE") in ("disabled", "offline", "dryrun"):
        return False
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    try:
        return "wandb" in netrc.read_text(errors="replace")
    except OSError:
        return False


def _run_id(folder: Path | None) -> str:
    """The wandb id of the run in this folder, drawn once."""
    fresh = os.urandom(8).hex()
    if folder is None:
        return fresh
    path = folder / _RUN_ID
    if not path.exists():
        path.write_text(fresh + "\n")
    return path.read_text().strip()
