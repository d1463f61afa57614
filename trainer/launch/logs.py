"""Every rank's output goes to its own file, native crashes included; only rank 0's shows on the screen as well."""

import faulthandler
import io
import os
import re
import sys
from pathlib import Path
from typing import IO, TextIO, cast

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")


class Tee(io.TextIOBase):
    """A text stream that writes to the screen as it is and to a log as plain lines.

    A progress bar redraws its line with carriage returns and control sequences: the log keeps the last state only.
    """

    def __init__(self, screen: TextIO, log: IO[str]) -> None:
        super().__init__()
        self._screen, self._log, self._line = screen, log, ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The screen's encoding."""
        return self._screen.encoding

    def write(self, text: str) -> int:
        """Write to both; the log receives complete lines."""
        *complete, self._line = (self._line + text).split("\n")
        for line in complete:
            self._log.write(plain(line) + "\n")
        if len(self._line) > 65_536:
            self._line = self._line[self._line.rfind("\r") + 1 :][-65_536:]
        self._screen.write(text)  # last: it may be gone
        return len(text)

    def flush(self) -> None:
        """Flush both."""
        self._screen.flush()
        self._log.flush()

    def isatty(self) -> bool:
        """Whether the screen is a terminal."""
        return self._screen.isatty()

    def fileno(self) -> int:
        """The screen's descriptor."""
        return self._screen.fileno()

    def writable(self) -> bool:
        """Always."""
        return True


def plain(line: str) -> str:
    """A line as it looks once it stands still: without control sequences, and only what follows the last return."""
    return _CONTROL.sub("", line).rstrip("\r").rpartition("\r")[2]


def log_file(run_dir: Path, rank: int, mode: str) -> Path:
    """Where a rank's output goes: logs/rank-N.log, or logs/evaluate-rank-N.log."""
    return run_dir / "logs" / (f"rank-{rank}.log" if mode == "train" else f"{mode}-rank-{rank}.log")


def redirect(path: Path, rank: int) -> tuple[TextIO, TextIO]:
    """Send this process's output, and that of native code and child processes, to a file.

    Returns:
        Output and error stream of the screen as they were, line buffered.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    screens = [os.fdopen(os.dup(number), "w", buffering=1, errors="replace") for number in (1, 2)]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
    files: list[TextIO] = [os.fdopen(os.dup(number), "w", buffering=1, errors="replace") for number in (1, 2)]
    if rank == 0:
        files = [cast(TextIO, Tee(*pair)) for pair in zip(screens, files, strict=True)]
    sys.stdout, sys.stderr = files
    faulthandler.enable(file=2, all_threads=True)
    return screens[0], screens[1]


def tail(path: Path, lines: int = 40) -> str:
    """The last lines of a log, for a rank that could not say itself what happened to it."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
