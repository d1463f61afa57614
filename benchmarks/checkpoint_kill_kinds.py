"""What benchmarks/checkpoint_kills.py runs: kinds of runs, whom a signal hits, and the stores they write to."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from benchmarks.exact_resume_cases import COMMON, MODELS
from benchmarks.processes import ranks_below
from gradwire.trainer.launch.ports import free_port

UPDATES = 60
RANKS = 2
EVERY = 10  # updates between two snapshots
Victim = Literal["rank", "all ranks", "agent", "everything"]
VICTIMS: tuple[Victim, ...] = ("rank", "all ranks", "agent", "everything")
_UNSET = ("run.length", "checkpoint.", "evaluation.every")
_NODES = ["comm=hierarchical", "comm.topology={local: 1, node: 2}"]
_TWO_HOSTS = {codec: [*_NODES, f"comm/codec@comm.codecs.node={codec}"] for codec in ("int8", "int4")}


@dataclass(frozen=True)
class Kind:
    """One kind of run.

    Args:
        name: For people.
        overrides: What makes it this kind.
        repeats: The most updates that a kill may cost; None where that is left to the snapshots.
        exact: Whether it must end in the bits of the undisturbed run.
    """

    name: str
    overrides: tuple[str, ...]
    repeats: int | None = None
    exact: bool = True

    def command(self, length: int = UPDATES) -> list[str]:
        """The overrides of a run that writes to its own folder."""
        base = [each for each in (*COMMON, *MODELS["decoder"]) if not each.startswith(_UNSET)]
        return [
            *base,
            f"run.length={length} updates",
            f"evaluation.every={length // 2} updates",
            f"launch.processes={RANKS}",
            "batch.micro=12",
            *self.overrides,
        ]


def _journal(durability: str, *rest: str) -> tuple[str, ...]:
    """Snapshots now and then, so that the journal moves on from one to the next."""
    return ("checkpoint=journal", f"checkpoint.journal={durability}", f"checkpoint.every={3 * EVERY} updates", *rest)


_SNAPSHOTS = ("checkpoint.every=10 updates",)
_FAST = "checkpoint.recovery=fast"
_SECONDS = "checkpoint.journal_interval=0.3 seconds"
KINDS = (
    Kind("snapshots", _SNAPSHOTS),
    Kind("snapshots, int8", (*_SNAPSHOTS, *_TWO_HOSTS["int8"])),
    Kind("snapshots, int4 with feedback", (*_SNAPSHOTS, *_TWO_HOSTS["int4"])),
    Kind("journal=update", _journal("update"), 1),
    Kind("journal=update, int8", _journal("update", *_TWO_HOSTS["int8"]), 1),
    Kind("journal=update, fp16 with a scaler", _journal("update", "precision=fp16"), 1),
    Kind("journal=interval", _journal("interval", _SECONDS)),
    Kind(
        "journal=update, int4, fast",
        _journal("update", *_TWO_HOSTS["int4"], "checkpoint.recovery=fast"),
        1,
        exact=False,
    ),
    Kind("journal=interval, int8", _journal("interval", _SECONDS, *_TWO_HOSTS["int8"])),
)


def workers(controller: psutil.Process) -> list[psutil.Process]:
    """The ranks of a launch, as far as they have been started."""
    try:
        return ranks_below(controller.pid)
    except psutil.NoSuchProcess:
        return []


def strike(controller: psutil.Process, victim: Victim, which: int) -> list[psutil.Process]:
    """Send SIGKILL to one rank, to all ranks, to their controller, or to all of these.

    Returns:
        All processes that must be gone soon: the victims, and where the controller is one, the ranks.
    """
    ranks = workers(controller)
    if victim == "rank":
        ranks = [ranks[which % len(ranks)]] if ranks else []
    doomed = ranks if victim in ("rank", "all ranks") else [controller, *ranks]
    for process in [controller] if victim == "agent" else doomed:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return doomed


@contextmanager
def s3_server() -> Iterator[None]:
    """A real S3 server over HTTP (moto's) in a process of its own, with a bucket `runs`; the environment names it."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        os.environ.update(environment)
        _make_bucket()
        yield
    finally:
        server.kill()
        server.wait()
        for name in environment:
            os.environ.pop(name, None)


def _make_bucket() -> None:
    deadline = time.monotonic() + 240
    while True:
        try:
            _filesystem().mkdir("runs")
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def _filesystem() -> Any:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    return s3fs.S3FileSystem(use_listings_cache=False)


def url_of(store: str, folder: Path) -> str:
    """Where a run in a folder keeps its checkpoints."""
    return f"s3://runs/{folder.parent.name}" if store == "s3" else str(folder / "checkpoints")


def remove(store: str, folder: Path) -> None:
    """Throw a run and its store away."""
    shutil.rmtree(folder, ignore_errors=True)
    if store == "s3":
        filesystem, url = _filesystem(), url_of(store, folder)
        if filesystem.exists(url):
            filesystem.rm(url, recursive=True)
