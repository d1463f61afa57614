import io
import os
import pty
import select
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradwire.trainer.loggers import Progress, RunInfo
from gradwire.trainer.loggers.peak import peak_flops

INFO = RunInfo(total_updates=800, world_size=2, flops_per_token=1e9, peak_flops=1e12)
RECORD = {"update": 20, "samples": 320, "tokens": 40960, "train/loss": 2.5, "lr": 0.005, "batch_size": 16}


def shown(capsys: pytest.CaptureFixture[str], *records: dict[str, float | int | str], info: RunInfo = INFO) -> str:
    progress = Progress()
    progress.start(info)
    for record in records:
        progress.log(record)
    progress.finish("done")
    return capsys.readouterr().out


def test_a_record_is_one_plain_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    line = shown(capsys, RECORD)
    assert line.startswith("update  20/800  loss 2.500  lr 5.0e-03  batch 16  eta ")
    assert line.count("\n") == 1
    assert "\x1b" not in line


def test_speed_and_utilization_are_shown_where_they_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    fast = {"tokens_per_second": 1500.0}
    assert "1.5k tokens/s  mfu 75.0%" in shown(capsys, RECORD | fast)
    unknown = shown(capsys, RECORD | fast, info=RunInfo(total_updates=800, peak_flops=1e12))
    assert "1.5k tokens/s" in unknown
    assert "mfu" not in unknown


def test_evaluation_and_skipped_updates_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    line = shown(capsys, RECORD | {"eval/loss": 1.75, "skipped": 2})
    assert "eval 1.750" in line
    assert "skipped 2" in line


def test_time_left_follows_the_speed_since_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("gradwire.trainer.loggers.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = Progress()
    progress.start(RunInfo(total_updates=800, resumed_update=400))
    now[0] += 10.0
    assert "eta 1:30" in progress.line({"update": 440})
    assert "eta" not in progress.line({"update": 800})
    now[0] += 7190.0
    assert "eta 18:00:00" in progress.line({"update": 440})


def test_the_age_of_the_last_checkpoint_counts_from_when_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gradwire.trainer.loggers.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = Progress()
    assert "saved 0:00 ago" in progress.line(RECORD | {"checkpoint/update": 10})
    now[0] = 75.0
    assert "saved 1:15 ago" in progress.line(RECORD | {"checkpoint/update": 10})
    assert "saved 0:00 ago" in progress.line(RECORD | {"checkpoint/update": 20})


def test_a_text_sample_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    block = shown(capsys, RECORD | {"eval/sample": "def f():\n    return [bold]x"})
    assert "  sample at update 20:\n  | def f():\n  |     return [bold]x\n" in block


def test_what_the_screen_cannot_encode_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    progress = Progress()
    progress.start(INFO)
    progress.log(RECORD | {"eval/sample": "größer \udcff"})
    screen.seek(0)
    assert "  | gr??er ?" in screen.read()


@pytest.mark.parametrize("record", [{}, {"update": "x"}, {"update": 1, "train/loss": float("nan"), "lr": "?"}])
def test_no_record_ends_a_run(capsys: pytest.CaptureFixture[str], record: dict[str, float | int | str]) -> None:
    shown(capsys, record, RECORD)


def test_a_screen_that_goes_away_does_not_end_the_run() -> None:
    program = (
        "from gradwire.trainer.loggers import Progress, RunInfo\n"
        "import sys\n"
        "progress = Progress()\n"
        "progress.start(RunInfo(total_updates=9))\n"
        "for update in range(10): progress.log({'update': update})\n"
        "progress.finish('done')\n"
        "print('trained', file=sys.stderr)\n"
    )
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert "trained" in result.stderr
    assert result.stderr.count("progress is not shown from here on") == 1


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    program = (
        "from gradwire.trainer.loggers import Progress, RunInfo\n"
        "progress = Progress()\n"
        "progress.start(RunInfo(total_updates=4))\n"
        "for update in range(1, 5): progress.log({'update': update, 'train/loss': 2.0 / update})\n"
        "progress.log({'update': 4, 'eval/sample': '[red]text'})\n"
        "progress.finish('done')\n"
    )
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=terminal, env=os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    )
    os.close(terminal)
    screen = b""
    while select.select([controller], [], [], 300)[0]:
        try:
            part = os.read(controller, 4096)
        except OSError:  # the terminal's other end is closed
            break
        screen += part
    assert process.wait() == 0
    text = screen.decode()
    assert "━" in text
    assert "update 4/4  loss 0.500" in text
    assert "  | [red]text" in text


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("Tesla T4", 65e12),
        ("NVIDIA GeForce GTX 970", None),
    ],
)
def test_peaks_are_found_by_the_devices_whole_name(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak
