"""What every benchmark does on a rank: show that it lives, stop where somebody asked for it, tell, and end."""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradwire.trainer import named_files
from gradwire.trainer.bench.errors import WrongResultError
from gradwire.trainer.launch.context import WorkerContext
from gradwire.trainer.launch.exit_codes import ExitCode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Stopped(Exception):  # noqa: N818 - no error: somebody asked to stop
    """A rank was asked to stop."""


def pulse(context: WorkerContext, step: str) -> None:
    """Tell the watchdog of the next step. A collective.

    Raises:
        Stopped: a rank was asked to stop; on every rank.
    """
    context.watchdog.beat(step, 0)
    if on_any(context.stop.requested, context):
        raise Stopped


def on_any(value: bool, context: WorkerContext) -> bool:
    """Whether it holds on a rank. A collective."""
    total = torch.tensor([int(value)])
    dist.all_reduce(total, group=context.control)
    return bool(total.item())


def say(text: str) -> None:
    """Show a line, or several."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write_json(findings: "DataclassInstance", arguments: Mapping[str, Any]) -> None:
    """Write the numbers to the file that the command named, if it named one."""
    if arguments["json"] is not None:
        named_files.write(Path(arguments["json"]), (json.dumps(asdict(findings), indent=1) + "\n").encode())


def conclude(wrong: Sequence[str], context: WorkerContext) -> int:
    """Remove the temporary folder with logs that told nothing; the exit code.

    Raises:
        WrongResultError: a result was wrong.
    """
    if context.local_rank == 0:
        shutil.rmtree(context.run_dir, ignore_errors=True)
    if wrong:
        raise WrongResultError("Results were wrong:\n" + "\n".join(wrong))
    return int(ExitCode.DONE)
