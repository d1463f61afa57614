"""starts.jsonl: every start, and every end but that of a kill."""

import json
from pathlib import Path

import pytest

from gradwire.trainer.loggers import RunInfo, StartsFile
from gradwire.trainer.report.recorded import Start, read_starts


def test_starts_and_ends_are_read_back(tmp_path: Path) -> None:
    seconds = iter([100.0, 200.0, 250.5])
    killed = StartsFile(lambda: next(seconds))
    killed.start(RunInfo(run_dir=tmp_path, world_size=2))
    killed.log({"update": 30})
    again = StartsFile(lambda: next(seconds))
    again.start(RunInfo(run_dir=tmp_path, world_size=3, resumed_update=25, snapshot_update=20))
    again.log({"update": 60})
    again.finish("done")
    starts, torn = read_starts(tmp_path / "starts.jsonl")
    assert torn == 0
    assert starts == (Start(100.0, None, None, 2), Start(200.0, 25, 20, 3, 250.5, "done"))
    assert json.loads((tmp_path / "starts.jsonl").read_text().splitlines()[-1])["update"] == 60


def test_lines_that_are_no_starts_are_counted(tmp_path: Path) -> None:
    good = '{"event": "start", "time": 1, "update": null, "snapshot": null, "world_size": 1}'
    wrong = ['{"event": "start"}', "[]", "{", good.replace("1,", "1e999,", 1), '{"event": "start", "tim']
    (tmp_path / "starts.jsonl").write_text("\n".join([good, *wrong]))
    assert read_starts(tmp_path / "starts.jsonl") == ((Start(1.0, None, None, 1),), 5)


def test_a_run_without_a_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logger = StartsFile()
    logger.start(RunInfo())
    logger.finish("done")
    assert list(tmp_path.iterdir()) == []
