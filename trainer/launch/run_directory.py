"""One directory per run: its configuration, logs, metrics, checkpoints and how it ended."""

import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gradwire.trainer.launch.claim import LOCK
from gradwire.trainer.launch.errors import RunExistsError, RunNotFoundError
from gradwire.trainer.launch.exit_codes import ExitCode

RUNS = Path("runs")
_LABEL = 60  # characters of a run's name that its folder takes: four bytes each at most, and a file name has 255
CONFIG, OVERRIDES, STATUS = "config.yaml", "overrides.txt", "status.json"


@dataclass(frozen=True)
class RunReference:
    """`RUN` or `RUN@UPDATE` as typed on the command line.

    Attributes:
        directory: The run directory, absolute.
        update: The update asked for, or None for the newest checkpoint.
    """

    directory: Path
    update: int | None

    @staticmethod
    def parse(text: str) -> "RunReference":
        """Find a run by its path or by its name under runs/.

        Raises:
            RunNotFoundError: there is no such run; the newest ones are listed.
        """
        name, update = split_update(text)
        for candidate in (Path(name), RUNS / name):
            if (candidate / CONFIG).is_file():
                return RunReference(candidate.resolve(), update)
        raise RunNotFoundError(f"No run {name!r}: neither {name} nor {RUNS / name} holds a {CONFIG}.{_known_runs()}")


def split_update(text: str) -> tuple[str, int | None]:
    """`NAME@UPDATE` as name and update; None where no update is named. A name may hold an `@` of its own."""
    name, _, update = text.rpartition("@") if re.search(r"@\d+$", text) else (text, "", "")
    return name, int(update) if update else None


def _known_runs() -> str:
    found = sorted(path.parent.name for path in RUNS.glob(f"*/{CONFIG}"))[-5:]
    return f" The newest under {RUNS}/: {', '.join(reversed(found))}." if found else f" There is no run under {RUNS}/."


def create(config: Mapping[str, Any], overrides: Sequence[str]) -> Path:
    """Create the directory of a new run: `run.dir` if given, else runs/<date>-<time>-<name>, never an existing run.

    Returns:
        The directory's absolute path, with config.yaml, overrides.txt and logs/ in it.

    Raises:
        RunExistsError: `run.dir` already holds a run.
    """
    wanted = config["run"].get("dir")
    directory = _claim_named(Path(wanted)) if wanted else _claim_dated(config["run"]["name"])
    write_config(directory, config, overrides)
    (directory / "logs").mkdir(exist_ok=True)
    return directory.resolve()


def _claim_named(directory: Path) -> Path:
    if (directory / CONFIG).exists():
        raise RunExistsError(
            f"run.dir={directory} already holds a run. Continue it with `gradwire resume {directory}`, "
            "or choose another directory."
        )
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _claim_dated(name: str) -> Path:
    label = re.sub(r"[^\w.-]+", "-", name).strip("-")[:_LABEL] or "run"
    base = f"{datetime.now():%Y-%m-%d-%H%M%S}-{label}"
    RUNS.mkdir(exist_ok=True)
    for attempt in range(1, 1000):
        directory = RUNS / (base if attempt == 1 else f"{base}-{attempt}")
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        return directory
    raise RunExistsError(f"{RUNS / base} and 998 numbered ones exist already: set run.name or run.dir.")


def write_config(directory: Path, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Write config.yaml and append to overrides.txt, where that changes anything; a config.yaml that differs is kept as
    config-<n>.yaml."""
    from gradwire.trainer.config import to_yaml

    text, path = to_yaml(config), directory / CONFIG
    if path.exists():
        if path.read_text() == text:
            return
        kept = next(name for n in range(1, 10**6) if not (name := directory / f"config-{n}.yaml").exists())
        _write(kept, path.read_text())  # a copy: a run that is killed here is not without its configuration
    _write(path, text)
    with (directory / OVERRIDES).open("a") as file:
        file.writelines(f"{override}\n" for override in overrides)


def write_status(
    directory: Path, status: str, exit_code: int | None = None, failure: Mapping[str, Any] | None = None
) -> None:
    """Record how the run stands: `running`, `done`, `failed` or `preempted`, with the exit code once it has ended.

    The directory says 75 even where an outer torchrun returns 1 to the shell.

    Args:
        directory: The run directory.
        status: How it stands.
        exit_code: That of the command.
        failure: What went wrong first: `kind`, `rank` and `message`.
    """
    record = {
        "status": status,
        "exit_code": exit_code,
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        **({} if failure is None else {"failure": dict(failure)}),
    }
    _write(directory / STATUS, json.dumps(record, indent=2) + "\n")


def begun(directory: Path) -> bool:
    """Whether the directory says that its run is under way: a resume that was refused leaves the word of before."""
    return bool(_status(directory).get("status", "running") == "running")


def recorded(directory: Path, exit_code: int) -> bool:
    """Whether the directory says that its run ended with this exit code."""
    return _status(directory).get("exit_code") == exit_code


def _status(directory: Path) -> dict[str, Any]:
    try:
        record = json.loads((directory / STATUS).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def discard(directory: Path) -> None:
    """Take back what `create` and its caller wrote, for a run in which nothing happened yet."""
    for name in (CONFIG, OVERRIDES, STATUS, LOCK):
        (directory / name).unlink(missing_ok=True)
    for folder in (directory / "logs", directory):
        try:
            folder.rmdir()
        except OSError:  # somebody else's files are in it
            return


def saved_anything(directory: Path, url: str | None) -> bool:
    """Whether a resume would find a snapshot; a store elsewhere is taken at its word."""
    from gradwire.checkpoint import Checkpointer, CheckpointError

    store = directory / "checkpoints"
    if url is not None or not store.is_dir():
        return url is not None
    try:
        return bool(Checkpointer(store, tiers=_tiers(directory)).reach())
    except (CheckpointError, OSError):  # damaged, which `gradwire resume` says better
        return True


def _tiers(directory: Path) -> list[str]:
    import yaml  # type: ignore[import-untyped]

    path = directory / CONFIG
    config = yaml.safe_load(path.read_text()) if path.exists() else {}
    return list(config.get("checkpoint", {}).get("tiers", []))


def status_of(exit_code: int) -> str:
    """The word for an exit code."""
    return {int(ExitCode.DONE): "done", int(ExitCode.PREEMPTED): "preempted"}.get(exit_code, "failed")


def closing_lines(directory: Path, exit_code: int, url: str | None = None) -> list[str]:
    """The last lines on the screen: where the run is, and what to type next (`url` is that of a store elsewhere)."""
    shown = shown_as(directory)
    lines = [f"run       {shown} ({status_of(exit_code)})"]
    if exit_code == ExitCode.DONE:
        lines += [
            f"evaluate  gradwire evaluate {shown}",
            f"resume    gradwire resume {shown} run.length=…",
            "sweep     gradwire sweep sweep.dir=sweeps/first optimizer.lr=0.002,0.005,0.01",
        ]
    elif exit_code == ExitCode.PREEMPTED or saved_anything(directory, url):
        lines += [f"resume    gradwire resume {shown}", f"evaluate  gradwire evaluate {shown}"]
    else:
        lines += ["resume    nothing was saved yet: start anew, in another run.dir if you name one"]
    lines += [f"report    gradwire report {shown}"]
    return [*lines, f"look      {shown}/metrics.jsonl, {shown}/logs/rank-0.log"]


def shown_as(directory: Path) -> str:
    """The folder as the screen names it: from the current one, where it lies in that."""
    try:
        return str(directory.relative_to(Path.cwd()))
    except ValueError:
        return str(directory)


def _write(path: Path, text: str) -> None:
    """Replace a file in one step, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, f"Cannot be written ({error.strerror})", str(path)) from error
