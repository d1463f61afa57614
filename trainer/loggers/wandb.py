"""Weights & Biases."""

import logging
import netrc
import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from gradwire.trainer.loggers.base import Record, RunInfo

log = logging.getLogger(__name__)
_RUN_ID = "wandb-run-id"


class Wandb:
    """Logs to Weights & Biases; a resumed run continues the same wandb run. Its failures warn and never stop training.

    Every chart has the update as its axis. wandb's own step only counts the records, so after a roll-back the repeated
    updates follow the abandoned ones in the same run, and none is dropped. WANDB_MODE=disabled is respected in every
    mode.

    Offline, every start writes a folder `wandb/offline-run-…` of its own, all with the same run id: `wandb sync`, given
    them at once or one by one in their order, asks the server how far the run is and appends (wandb 0.31).

    Args:
        mode: `auto` logs where the user is logged in and nothing elsewhere; `online` logs online where the user is
            logged in and offline elsewhere (`wandb sync` uploads it later); `offline` never connects.
        project: Project to log to.
        entity: Team or user; null takes the user's own.
        group: Runs of one group are shown together; null is none.
    """

    def __init__(
        self,
        mode: Literal["auto", "online", "offline"] = "auto",
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
        try:
            logged_in = is_logged_in()
            if os.environ.get("WANDB_MODE") == "disabled" or (self._mode == "auto" and not logged_in):
                return
            self._run = self._init(info, "online" if logged_in and self._mode != "offline" else "offline")
            self._run.define_metric("update")
            self._run.define_metric("*", step_metric="update")
        except Exception as error:  # whatever is wrong with the service, the training goes on
            self._run = None
            log.warning("wandb could not start and is left out: %s", error)

    def _init(self, info: RunInfo, mode: Literal["online", "offline"]) -> Any:
        import wandb

        return wandb.init(
            project=self._project,
            entity=self._entity,
            group=self._group,
            name=info.name,
            dir=str(info.run_dir or Path.cwd()),
            id=_run_id(info.run_dir),
            resume="allow",
            config=dict(info.config),
            mode=mode,
            settings=wandb.Settings(silent=True, console="off"),  # the run directory has the output of every rank
        )

    def log(self, record: Record) -> None:
        """Log a record; its `update` is where charts show it."""
        if self._run is None:
            return
        try:
            self._run.log(dict(record))
        except Exception as error:
            log.warning("wandb failed and is left out from here on: %s", error)
            self._run = None

    def finish(self, status: str) -> None:
        """End the wandb run as finished, preempted or failed."""
        if self._run is None:
            return
        try:
            if status == "preempted":
                self._run.mark_preempting()
            self._run.finish(exit_code={"done": 0, "preempted": 75}.get(status, 1))
        except Exception as error:
            log.warning("wandb could not finish: %s", error)
        self._run = None


def is_logged_in() -> bool:
    """Whether wandb would find a key, in the environment or in the user's netrc file, and may use the network."""
    if os.environ.get("WANDB_MODE") in ("disabled", "offline", "dryrun"):
        return False
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    named = os.environ.get("NETRC")
    paths = [Path(named)] if named else [Path("~/.netrc"), Path("~/_netrc")]
    return any(_has_key(path.expanduser(), server) for path in paths)


def _has_key(path: Path, server: str) -> bool:
    """Whether a netrc file names a key for this very server; a broken file has none."""
    try:
        _, _, key = netrc.netrc(path).hosts[server]
    except (KeyError, OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return False
    return bool(key)


def _run_id(folder: Path | None) -> str:
    """The wandb id of the run in this folder, drawn once and written at once; a W&B agent gives its runs theirs."""
    path = None if folder is None else folder / _RUN_ID
    known = path.read_text().strip() if path is not None and path.exists() else ""
    if known:
        return known
    fresh = (os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_SWEEP_ID") else None) or os.urandom(8).hex()
    if path is not None:
        temporary = path.with_name(f".{_RUN_ID}.new")
        temporary.write_text(fresh + "\n")
        temporary.replace(path)
    return fresh
