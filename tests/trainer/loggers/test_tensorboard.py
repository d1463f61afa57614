import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gradwire.trainer.loggers import RunInfo, TensorBoard


def run(folder: Path, first: int, last: int, resumed: int | None = None, attempt: float = 1.0) -> None:
    logger = TensorBoard()
    logger.start(RunInfo(run_dir=folder, resumed_update=resumed))
    for update in range(first, last + 1):
        logger.log({"update": update, "samples": 4 * update, "train/loss": attempt / update, "eval/sample": "def f"})
    logger.finish("done")


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def test_numbers_are_scalars_at_their_update_and_text_is_text(tmp_path: Path) -> None:
    run(tmp_path, 1, 3)
    events = read(tmp_path)
    assert [(s.step, s.value) for s in events.Scalars("train/loss")] == [
        (1, 1.0),
        (2, 0.5),
        (3, pytest.approx(1 / 3)),
    ]
    assert [s.value for s in events.Scalars("samples")] == [4.0, 8.0, 12.0]
    assert events.Tensors("eval/sample/text_summary")[0].tensor_proto.string_val == [b"def f"]


def test_a_resumed_run_replaces_what_came_after_its_restored_update(tmp_path: Path) -> None:
    run(tmp_path, 1, 6)
    run(tmp_path, 4, 7, resumed=3, attempt=100.0)
    scalars = read(tmp_path).Scalars("train/loss")
    assert [s.step for s in scalars] == [1, 2, 3, 4, 5, 6, 7]
    assert [s.value > 10 for s in scalars] == [False] * 3 + [True] * 4


def test_a_run_that_starts_anew_in_its_folder_replaces_everything(tmp_path: Path) -> None:
    run(tmp_path, 1, 4)
    run(tmp_path, 1, 2, attempt=100.0)
    assert [(s.step, s.value) for s in read(tmp_path).Scalars("train/loss")] == [(1, 100.0), (2, 50.0)]


def test_a_loss_that_is_no_number_is_kept(tmp_path: Path) -> None:
    logger = TensorBoard()
    logger.start(RunInfo(run_dir=tmp_path))
    logger.log({"update": 1, "train/loss": math.nan})
    logger.finish("failed")
    assert math.isnan(read(tmp_path).Scalars("train/loss")[0].value)


def test_a_run_without_a_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logger = TensorBoard()
    logger.start(RunInfo())
    logger.log({"update": 1})
    logger.finish("done")
    assert list(tmp_path.iterdir()) == []
