"""Progress on a terminal, and that a screen that goes away does not end the run nor its process's good order."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwire.trainer.loggers import Progress, RunInfo

RUN = """
import sys
from gradwire.trainer.loggers import Progress, RunInfo
progress = Progress()
progress.start(RunInfo(total_updates=3))
for update in (1, 2, 3):
    progress.log({"update": update, "train/loss": 1.5, "eval/sample": "to be [b]or[/b] not"})
    sys.stdin.readline()
progress.finish("done")
sys.stderr.write("came to its end")
"""


GONE = "progress is not shown from here on:"


def started(**info: Any) -> Progress:
    progress = Progress()
    progress.start(RunInfo(**info))
    return progress


def closed() -> io.StringIO:
    screen = io.StringIO()
    screen.close()
    return screen


@pytest.mark.parametrize("screen", [None, closed()])
def test_without_a_screen_it_says_so_once_and_goes_on(
    screen: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", screen)
    progress = started(total_updates=2)
    progress.log({"update": 1})
    progress.log({"update": 2})
    progress.finish("done")
    assert [record.message.partition(":")[0] for record in caplog.records] == ["progress is not shown from here on"]


def test_a_record_that_cannot_be_shown_does_not_raise(caplog: pytest.LogCaptureFixture) -> None:
    progress = started(total_updates=2)
    progress.log({})
    progress.finish("done")
    assert "KeyError: 'update'" in caplog.text


def run(stdout: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "24"},
        start_new_session=True,
    )


def test_a_closed_pipe_does_not_end_the_run() -> None:
    with run(subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline().startswith("update 1/3  loss 1.500")
        child.stdout.close()
        child.stdout = None
        _, errors = child.communicate("\n\n\n")
    assert (child.returncode, errors) == (0, f"{GONE} BrokenPipeError: [Errno 32] Broken pipe\ncame to its end")


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal: what its user sees, and what the process writes to."""
    yield pty.openpty()


def read_until(terminal: int, text: str) -> str:
    shown = ""
    while text not in shown:
        try:
            shown += os.read(terminal, 4096).decode(errors="replace")
        except OSError:  # the other side is closed
            break
    return shown


def test_a_terminal_has_a_bar_that_leaves_it_in_order(terminal: tuple[int, int]) -> None:
    user, process = terminal
    with run(process) as child:
        os.close(process)
        assert child.stdin is not None
        child.stdin.write("\n\n\n")
        child.stdin.flush()
        shown = read_until(user, "never shown")
        errors = child.communicate()[1]
    os.close(user)
    assert (child.returncode, errors) == (0, "came to its end")
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is back
    for update in (1, 2, 3):
        assert f"update {update}/3  loss 1.500" in shown
        assert f"  sample at update {update}:\r\n  | to be [b]or[/b] not" in shown
    assert "━" * 20 + "\x1b[0m update 3/3" in shown  # a full bar beside the last line


def test_a_closed_terminal_does_not_end_the_run(terminal: tuple[int, int]) -> None:
    user, process = terminal
    with run(process) as child:
        os.close(process)
        assert "update 1/3" in read_until(user, "update 1/3")
        os.close(user)
        errors = child.communicate("\n\n\n")[1]
    assert (child.returncode, errors) == (0, f"{GONE} OSError: [Errno 5] Input/output error\ncame to its end")


def test_after_a_lost_screen_the_descriptor_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        progress = started(total_updates=2)
        progress.log({"update": 1})
        screen.write("somebody else's text")
        screen.flush()  # would raise
        assert os.path.samestat(os.fstat(screen.fileno()), Path(os.devnull).stat())
