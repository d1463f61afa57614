"""Logs: everything a process writes, native code included, and plain lines of what redraws itself."""

import io
import subprocess
import sys

import pytest

from gradwire.trainer.launch.logs import Tee, log_file, plain, tail


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_screen_gets_all_and_the_log_complete_lines():
    screen, log = Terminal(), io.StringIO()
    tee = Tee(screen, log)
    tee.write("one\ntw")
    assert screen.getvalue() == "one\ntw" and log.getvalue() == "one\n"
    tee.write("o\n")
    assert log.getvalue() == "one\ntwo\n"
    assert tee.isatty()


@pytest.mark.parametrize(
    ("drawn", "kept"),
    [
        ("plain", "plain"),
        ("\x1b[1;32mgreen\x1b[0m", "green"),
        ("10 %\r20 %\r30 %", "30 %"),
        ("\r\x1b[2K 5 of 9\r\x1b[2K 6 of 9", " 6 of 9"),
        ("ends with a return\r", "ends with a return"),
        ("\x1b]8;;http://x\x07link", "link"),
    ],
)
def test_what_redraws_itself_is_logged_as_it_stands_at_the_end(drawn, kept):
    assert plain(drawn) == kept


def test_a_bar_that_never_ends_its_line_does_not_grow_in_memory():
    tee = Tee(io.StringIO(), io.StringIO())
    for _ in range(10_000):
        tee.write("\rprogress of some length, again and again")
    assert len(tee._line) <= 65_536 + 100


@pytest.mark.parametrize(("rank", "shown"), [(0, True), (1, False)])
def test_a_rank_writes_to_its_log_and_only_rank_0_to_the_screen(tmp_path, rank, shown):
    code = f"""
import os, sys
from pathlib import Path
from gradwire.trainer.launch.logs import redirect
redirect(Path({str(tmp_path)!r}) / "logs" / "x.log", {rank})
print("from python"); print("an error", file=sys.stderr)
os.write(1, b"from native code\\n"); os.system("echo from a child")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted((tmp_path / "logs" / "x.log").read_text().splitlines()) == [
        "an error",
        "from a child",
        "from native code",
        "from python",
    ]
    assert (done.stdout, done.stderr) == (("from python\n", "an error\n") if shown else ("", ""))


def test_a_second_attempt_appends(tmp_path):
    code = f"""
from pathlib import Path
from gradwire.trainer.launch.logs import redirect
redirect(Path({str(tmp_path)!r}) / "x", 1)
print("line")
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "x").read_text() == "line\nline\n"


def test_evaluation_has_logs_of_its_own(tmp_path):
    assert log_file(tmp_path, 3, "train").name == "rank-3.log"
    assert log_file(tmp_path, 3, "evaluate").name == "evaluate-rank-3.log"


def test_the_tail_is_the_last_lines_and_nothing_without_a_file(tmp_path):
    (tmp_path / "x").write_text("a\nb\nc\n")
    assert tail(tmp_path / "x", 2) == "b\nc" and tail(tmp_path / "y") == ""
