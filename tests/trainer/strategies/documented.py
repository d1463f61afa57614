"""The commands of a page under docs/, trained for two updates on ranks that are there already."""

import re
import shlex
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from gradwire.trainer.body import run
from gradwire.trainer.config import compose, validate
from gradwire.trainer.launch.context import WorkerContext
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.signals import StopRequest
from gradwire.trainer.launch.watchdog import Watchdog

ROOT = Path(__file__).parents[3]
SMALL = (
    *("model.width=40", "model.layers=4", "data.context=16", "batch.size=8", "batch.micro=2", "launch.device=cpu"),
    *("noise_scale.every=null", "evaluation.every=null", "run.log_every=1"),
)


def commands(page: str) -> list[list[str]]:
    """Verb and overrides of a page's `gradwire train` and `resume`, but for those that are marked as not run."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines() if not line.endswith("# not run here")]
    words = [shlex.split(line, comments=True) for line in lines]
    return [rest for program, *rest in filter(None, words) if program == "gradwire" and rest[0] in ("train", "resume")]


def train_documented(rank: int, folder: str, page: str, *beside: str) -> None:
    """Train by each command, and resume the run before where it says so. A collective.

    Args:
        rank: This one.
        folder: Of the runs.
        page: Its name without `.md`.
        *beside: Overrides for what this machine lacks.
    """
    found = commands(page)
    assert found
    trained: list[str] = []
    for number, (verb, *overrides) in enumerate(found):
        resumes = verb == "resume"
        before = [each for each in trained if not each.startswith("strategy")]
        own = [*before, *overrides[1:], *beside] if resumes else [*SMALL, *overrides, *beside]
        trained = trained if resumes else own
        length, where = (4, number - 1) if resumes else (2, number)
        told = [each for each in own if not each.startswith("launch.processes")]
        config = validate(compose([*told, f"run.length={length} updates"])).config
        context = _context(rank, Path(folder) / f"{page}-{where}", "latest" if resumes else None)
        assert run(config, context) == ExitCode.DONE
        if rank == 0:
            logged = (context.run_dir / "metrics.jsonl").read_text()
            assert f'"update": {length},' in logged, logged


def _context(rank: int, folder: Path, restore: str | None) -> WorkerContext:
    """A rank's place on one host."""
    folder.mkdir(exist_ok=True)
    size, control = dist.get_world_size(), dist.new_group(backend="gloo")
    assert control is not None
    store = dist.distributed_c10d._get_default_store()
    return WorkerContext(
        *(rank, size, rank, size, torch.device("cpu"), folder, store, control),
        stop=StopRequest(),
        watchdog=Watchdog(store, rank, size, None, lambda failure: None),
        mode="train",
        restore=restore,
        allow=(),
        screen=sys.stdout,
    )
