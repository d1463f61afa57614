"""The lines that a run shows, whole."""

from types import SimpleNamespace
from typing import Any

import pytest

import gradwire.trainer.loggers.progress as progress_module
from gradwire.trainer.loggers import Progress, RunInfo


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time as the progress sees it, in `now`."""
    time = SimpleNamespace(now=0.0)
    time.monotonic = lambda: time.now
    monkeypatch.setattr(progress_module, "time", time)
    return time


def started(**info: Any) -> Progress:
    progress = Progress()
    progress.start(RunInfo(**info))
    return progress


def test_lines_show_what_was_measured(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    progress = started(total_updates=1000, flops_per_token=6e6, peak_flops=1e12, world_size=2)
    progress.log({"update": 0, "samples": 0, "tokens": 0, "eval/loss": 4.61})
    clock.now = 20.0
    measured = {"train/loss": 2.3456, "lr": 3e-4, "batch_size": 32, "grad_norm": 1.0}
    progress.log({"update": 10, "samples": 320} | measured | {"tokens_per_second": 41_000.0})
    clock.now = 100.0
    progress.log({"update": 50} | measured | {"skipped": 2, "checkpoint/update": 40, "eval/accuracy": 0.5})
    clock.now = 2000.0
    progress.log({"update": 1000, "train/loss": float("nan"), "checkpoint/update": 40, "tokens_per_second": 2.5e6})
    progress.finish("done")
    assert capsys.readouterr().out.splitlines() == [
        "update    0/1000  eval 4.610",
        "update   10/1000  loss 2.346  lr 3.0e-04  batch 32  41.0k tokens/s  mfu 12.3%  eta 33:00",
        "update   50/1000  loss 2.346  accuracy 0.500  lr 3.0e-04  batch 32  skipped 2  eta 31:40  saved 0:00 ago",
        "update 1000/1000  loss nan  2.5M tokens/s  mfu 750.0%  saved 31:40 ago",
    ]


def test_a_sample_is_a_block_of_its_own(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    progress = started(total_updates=20)
    progress.log({"update": 20, "eval/loss": 1.25, "eval/sample": "To be,\nor [b]not"})
    assert capsys.readouterr().out == ("update 20/20  eval 1.250\n  sample at update 20:\n  | To be,\n  | or [b]not\n")


def test_the_time_left_of_a_resumed_run_counts_its_own_updates(clock: SimpleNamespace) -> None:
    progress = started(total_updates=1000, resumed_update=900)
    clock.now = 30.0
    assert progress.line({"update": 910}) == "update  910/1000  eta 4:30"
    assert progress.line({"update": 900}) == "update  900/1000"


def test_hours_are_shown_where_there_are_some(clock: SimpleNamespace) -> None:
    progress = started(total_updates=11)
    clock.now = 370.0
    assert progress.line({"update": 1}) == "update  1/11  eta 1:01:40"


@pytest.mark.parametrize("unknown", ["flops_per_token", "peak_flops"])
def test_no_share_of_the_peak_is_shown_where_it_is_unknown(clock: SimpleNamespace, unknown: str) -> None:
    progress = started(**({"total_updates": 9, "flops_per_token": 1.0, "peak_flops": 1e3} | {unknown: None}))
    assert progress.line({"update": 9, "tokens_per_second": 500.0}) == "update 9/9  500 tokens/s"
