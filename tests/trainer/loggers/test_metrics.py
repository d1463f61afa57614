"""metrics.jsonl: what was measured reads back bit for bit, and roll-backs lose and repeat nothing, killed or not."""

import json
import os
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.trainer.loggers import MetricsFile, RunInfo
from gradwire.trainer.loggers.metrics import roll_back, to_line


def bits(value: float) -> bytes:
    return b"nan" if value != value else struct.pack("<d", value)


def start(folder: Path, resumed_update: int | None = None) -> MetricsFile:
    logger = MetricsFile(lambda: 1.5)
    logger.start(RunInfo(run_dir=folder, resumed_update=resumed_update))
    return logger


def lines(folder: Path, name: str = "metrics.jsonl") -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def updates(folder: Path, name: str = "metrics.jsonl") -> list[int]:
    return [json.loads(line)["update"] for line in lines(folder, name)]


def abandoned(folder: Path) -> list[int]:
    return updates(folder, "metrics.abandoned.jsonl")


def log_updates(folder: Path, numbers: range, resumed_update: int | None = None) -> None:
    logger = start(folder, resumed_update)
    for number in numbers:
        logger.log({"update": number})
    logger.finish("done")


@given(st.floats())
def test_every_float_reads_back_bit_for_bit(value: float) -> None:
    line = to_line({"update": 1, "x": value})
    read = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert bits(float(read["x"])) == bits(value)


@given(st.dictionaries(st.text(), st.integers() | st.text()))
def test_a_record_is_one_line_and_reads_back(record: dict[str, int | str]) -> None:
    line = to_line(record)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert json.loads(line) == record


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.array(1.5), 1.5),
        (np.float32("nan"), "NaN"),
        (torch.tensor(2.5), 2.5),
        (torch.tensor(3), 3),
        (torch.tensor(0.75, dtype=torch.bfloat16, requires_grad=True), 0.75),
        (torch.tensor(float("-inf")), "-Infinity"),
    ],
)
def test_scalars_of_numpy_and_torch_are_numbers(tmp_path: Path, value: Any, read: float | str) -> None:
    logger = start(tmp_path)
    logger.log({"update": 1, "x": value})
    assert lines(tmp_path) == [json.dumps({"update": 1, "x": read, "time/unix": 1.5})]


def test_a_line_can_be_read_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    logger = start(tmp_path)
    logger.log({"update": 1, "lr": 0.5})
    assert lines(tmp_path) == ['{"update": 1, "lr": 0.5, "time/unix": 1.5}']
    logger.finish("done")
    logger.log({"update": 2})
    assert updates(tmp_path) == [1]


def test_a_run_without_a_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logger = MetricsFile()
    logger.start(RunInfo())
    logger.log({"update": 1})
    logger.finish("done")
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_abandons_the_lines_after_its_update(tmp_path: Path) -> None:
    log_updates(tmp_path, range(1, 7))
    log_updates(tmp_path, range(5, 8), resumed_update=4)
    assert updates(tmp_path) == [1, 2, 3, 4, 5, 6, 7]
    assert abandoned(tmp_path) == [5, 6]


def test_a_run_that_starts_anew_abandons_all_lines(tmp_path: Path) -> None:
    log_updates(tmp_path, range(3))
    log_updates(tmp_path, range(2))
    assert updates(tmp_path) == [0, 1]
    assert abandoned(tmp_path) == [0, 1, 2]


def test_a_resumed_run_with_nothing_later_leaves_no_other_file(tmp_path: Path) -> None:
    log_updates(tmp_path, range(1, 4))
    log_updates(tmp_path, range(4, 6), resumed_update=3)
    assert updates(tmp_path) == [1, 2, 3, 4, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_equal_lines_of_two_tries_are_both_kept(tmp_path: Path) -> None:
    for _ in range(3):
        log_updates(tmp_path, range(1, 3), resumed_update=0)
    assert abandoned(tmp_path) == [1, 2, 1, 2]
    assert updates(tmp_path) == [1, 2]


def test_a_torn_last_line_is_abandoned_byte_for_byte(tmp_path: Path) -> None:
    log_updates(tmp_path, range(1, 3))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"update": 3, "x": "\xff')
    log_updates(tmp_path, range(3, 4), resumed_update=2)
    assert updates(tmp_path) == [1, 2, 3]
    assert (tmp_path / "metrics.abandoned.jsonl").read_bytes() == b'{"update": 3, "x": "\xff\n'


def test_a_copy_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    log_updates(tmp_path, range(1, 7))
    log_updates(tmp_path, range(6, 7), resumed_update=5)
    done = (tmp_path / "metrics.abandoned.jsonl").read_bytes()
    kept = sum(len(to_line({"update": number, "time/unix": 1.5})) for number in (1, 2, 3))
    journal = tmp_path / ".metrics.roll-back"
    journal.write_text(json.dumps({"kept": kept, "abandoned": len(done)}))
    (tmp_path / "metrics.abandoned.jsonl").write_bytes(done + b'{"update": 4}\n{"upd')
    log_updates(tmp_path, range(0), resumed_update=1)
    assert updates(tmp_path) == [1]
    assert abandoned(tmp_path) == [6, 4, 5, 6, 2, 3]
    assert not journal.exists()


def kill_at(event: int, action: Callable[[], None]) -> bool:
    """Do it in a forked process that is killed before its n-th call into the operating system; whether it was."""
    child = os.fork()
    if child == 0:
        left = event

        def count(frame: Any, kind: str, argument: Any) -> None:
            nonlocal left
            if kind == "c_call":
                owner = argument.__self__
                left -= getattr(owner, "__name__", type(owner).__module__) in ("posix", "io", "_io")
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.setprofile(count)
            action()
        finally:
            sys.setprofile(None)
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_killed_anywhere_no_line_is_lost_and_none_is_there_twice(tmp_path: Path) -> None:
    event, killed, seen = 0, True, set()
    while killed:
        folder = tmp_path / f"{event}"
        folder.mkdir()
        log_updates(folder, range(1, 7))
        killed = kill_at(event, lambda folder=folder: roll_back(folder / "metrics.jsonl", 4))  # type: ignore[misc]
        seen.add((len(updates(folder)), len(lines(folder, "metrics.abandoned.jsonl"))))
        for later in (2, 5):
            again = shutil.copytree(folder, tmp_path / f"{event}-then-{later}")
            roll_back(again / "metrics.jsonl", later)
            assert sorted(updates(again) + abandoned(again)) == [1, 2, 3, 4, 5, 6], event
            assert updates(again) in ([1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5]), event
            assert len(updates(again)) <= later, event
        event += 1
    assert seen == {(6, 0), (6, 2), (4, 2)}  # it was killed before, between and after the two changes


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 12), st.none() | st.integers(0, 40)), min_size=2, max_size=6)
)
def test_any_sequence_of_tries_keeps_every_line_once(tries: list[tuple[int, int, int | None]]) -> None:
    """Each try rolls back to some update, perhaps is killed at it, else logs some lines, each unlike all others."""
    written: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "metrics.jsonl"
        path.touch()
        for count, update, event in [*tries, (0, 12, None)]:
            if event is not None and kill_at(event, lambda: roll_back(path, update)):  # noqa: B023 - called at once
                continue
            roll_back(path, update)
            last = updates(Path(name))[-1:] or [0]
            assert last[0] <= max(update, 0)
            new = [to_line({"update": last[0] + i + 1, "id": len(written) + i}) for i in range(count)]
            with path.open("a") as file:
                file.writelines(new)
            written += new
        everywhere = lines(Path(name)) + lines(Path(name), "metrics.abandoned.jsonl")
    assert sorted(everywhere) == sorted(line.rstrip("\n") for line in written)
