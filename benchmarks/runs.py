"""Runs of `gradwire train` as processes: started, interrupted and resumed, and what they logged."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import end_all

GRADWIRE = [str(Path(sys.executable).parent / "gradwire")]
_HELD = Path(__file__).with_name("held")  # a folder for PYTHONPATH
_SAVED = "checkpoint/update"  # what a line of metrics.jsonl has once a snapshot is durable


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def held(update: int, *, saved: bool = False) -> dict[str, str]:
    """The environment of a run that `interrupt` strikes at an update, with the same arguments.

    Should the blow be late, the run waits for it when it has written one line more than `interrupt` waits for: it is
    not over by then. Only its first start does, not one that follows a restart.
    """
    path = [str(_HELD), *filter(None, [os.environ.get("PYTHONPATH")])]
    after = json.dumps([update, _SAVED if saved else None])
    return environment() | {"PYTHONPATH": os.pathsep.join(path), "HELD_AFTER": after}


def train(folder: Path, overrides: list[str]) -> subprocess.Popen[str]:
    """Start `gradwire train` in the background."""
    return _start("train", f"run.dir={folder}", *overrides)


def train_until(folder: Path, overrides: list[str], update: int, how: str, *, saved: bool = False) -> None:
    """`gradwire train`, interrupted at an update as `interrupt` says."""
    process = _start("train", f"run.dir={folder}", *overrides, environ=held(update, saved=saved))
    interrupt(process, folder, update, how, saved=saved)


def finish(process: subprocess.Popen[str], expected: int = 0) -> str:
    """Wait for the end of a run; its output."""
    try:
        output, _ = process.communicate(timeout=500)
    except subprocess.TimeoutExpired:
        process.kill()  # what runs on would hold up what comes next
        raise
    if process.returncode != expected:
        raise RuntimeError(f"exit code {process.returncode} where {expected} was expected:\n{output}")
    return output


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The whole lines of a metrics file."""
    path = folder / name
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def interrupt(process: subprocess.Popen[str], folder: Path, update: int, how: str, *, saved: bool = False) -> None:
    """Wait until `update` is logged, then kill every process of the run, or ask the controller to stop.

    With `saved` not before a snapshot is durable: they are written beside training. The run is one that is `held`.
    """
    deadline = time.monotonic() + 240
    while not any(line["update"] >= update and (not saved or _SAVED in line) for line in lines(folder)):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"the run ended before update {update}:\n{process.communicate()[0]}")
        time.sleep(0.005)
    if how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
        finish(process, expected=75)
        return
    end_all(process.pid)
    process.communicate()


def resume(folder: Path, *overrides: str) -> str:
    """`gradwire resume`, to the end."""
    return finish(_start("resume", str(folder), *overrides))


def _start(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [*GRADWIRE, *arguments]
    return subprocess.Popen(
        command, env=environ or environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
