"""Commands in this process, where all that matters is what they say and the code they end with."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from typer.testing import CliRunner

from gradwire.trainer import cli


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def gradwire(*arguments: str, cwd: str | os.PathLike[str] | None = None) -> Done:
    """Run a command in the folder `cwd`; what is no refusal but an error is raised here.

    No run is started: a command that was not refused by the time it would start one fails the test.
    """
    folder = contextlib.chdir(Path.cwd() if cwd is None else cwd)
    with folder, mock.patch("gradwire.trainer.launch.start.start", _would_start):
        result = CliRunner().invoke(cli.app, list(arguments), prog_name="gradwire")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def _would_start(prepare: Callable[[], object], *worker: object) -> int:
    raise AssertionError(f"not refused: {prepare()}")
