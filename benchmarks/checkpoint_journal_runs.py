"""Runs of the benchmark of the journal: trained to the end, killed, resumed."""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from gradwire.checkpoint import Checkpointer

ROOT = Path(__file__).parents[1]
GRADWIRE = [str(Path(sys.executable).parent / "gradwire")]
LATE = 0.85  # of the updates between two snapshots
PATIENCE = 300.0  # seconds for a run that is to be killed
QUIET = [
    "evaluation.every=null",
    "evaluation.samples=0",
    "run.check_replicas=null",
    "noise_scale.every=null",
    "logger=none",
    "launch.device=cpu",
    "launch.processes=2",
    "checkpoint=journal",
    "data=python_source",
]


def train(run: Path, overrides: list[str]) -> None:
    """Run to the end."""
    done = subprocess.run(_command(run, overrides), env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"training ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def job(arguments: argparse.Namespace, updates: int) -> list[str]:
    """The overrides of a run."""
    codec = {
        "none": [],
        "int8": ["comm=ring", "comm/codec@comm.codecs.ring=int8"],
        "int4": [
            "comm=ring",
            "comm/codec@comm.codecs.ring=int4",
            "checkpoint.recovery=fast",  # with error feedback, exact recovery takes snapshots alone
        ],
    }[arguments.codec]
    return [
        *QUIET,
        *codec,
        f"model={arguments.model}",
        f"batch.size={arguments.batch}",
        f"run.length={updates} updates",
        "allow_targets=[benchmarks]",
    ]


def _command(run: Path, overrides: list[str]) -> list[str]:
    return [*GRADWIRE, "train", f"run.dir={run}", *overrides]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def size(folder: Path) -> int:
    """Bytes of the files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def killed(run: Path, overrides: list[str]) -> None:
    """Train until the journal is almost as long as when the last snapshot fell due, then SIGKILL every process."""
    process = subprocess.Popen(_command(run, overrides), env=_environment(), stdout=subprocess.DEVNULL)
    began, base, last, interval = time.monotonic(), 0, 0, 0
    try:
        while not (interval and last - base >= LATE * interval):
            time.sleep(0.5)
            if process.poll() is not None or time.monotonic() - began > PATIENCE:
                raise RuntimeError(f"no second snapshot came; the run ended with {process.returncode}")
            commit, last = reach(run)
            if commit > base:
                base, interval = commit, commit - base
    finally:
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        process.wait()


def reach(run: Path) -> tuple[int, int]:
    """The updates of the newest snapshot and of the newest entry."""
    store = run / "checkpoints"
    if not (store / "commits").is_dir() or not any((store / "commits").iterdir()):
        return 0, 0
    newest = Checkpointer(store).latest()
    names = [name for _, _, files in os.walk(store / "journal") for name in files if "-of-" in name]
    return (newest.update if newest else 0), max((int(name.partition("-")[0]) for name in names), default=0)


def resumed(run: Path) -> dict[str, float]:
    """Seconds of loading and of replaying, by a resumed run that stops then."""
    command = [*GRADWIRE, "resume", str(run), "run.max_time=1 seconds"]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False, timeout=500)
    told = done.stdout + done.stderr + "".join(path.read_text() for path in (run / "logs").glob("*rank-0*"))
    loaded = re.findall(r"restored the snapshot of update \d+ in ([0-9.]+) s", told)
    replayed = re.findall(r"replayed updates \d+ to \d+ from the journal in ([0-9.]+) s", told)
    if not replayed:
        raise RuntimeError(f"nothing was replayed:\n{told[-2000:]}")
    return {"load": float(loaded[-1]), "replay": float(replayed[-1])}
