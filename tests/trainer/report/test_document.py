"""What a report says of a run, whatever is left of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.report_runs import records, write_run
from gradwire.trainer.report import report_on

START = '{"event": "start", "time": %s, "update": %s, "snapshot": %s, "world_size": 1}\n'
END = '{"event": "end", "time": %s, "update": 9, "status": "done"}\n'


def lines(*updates: int, at: float = 1000.0, **more: Any) -> list[dict[str, Any]]:
    return [{"update": n, "samples": 8 * n, "train/loss": 1 / n, "time/unix": at + n, **more} for n in updates]


def jsonl(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def chart(document: dict[str, Any], key: str) -> dict[str, Any]:
    return next(each for each in document["charts"] if each["key"] == key)


def told(document: dict[str, Any], row: str) -> list[str]:
    return [event["text"] for event in document["runs"][0]["events"] if event["row"] == row]


def test_every_point_stands_where_its_line_of_metrics_says(tmp_path: Path) -> None:
    given = list(records(40))
    document = report_on([write_run(tmp_path / "run", given)])
    positions = document["runs"][0]["positions"]
    for shown in document["charts"]:
        for line in shown.get("lines", []):
            if line["name"] in given[0] | given[-1]:
                found = [(positions["update"][at], value) for at, value in zip(line["at"], line["values"], strict=True)]
                assert found == [(each["update"], each[line["name"]]) for each in given if line["name"] in each]
    assert positions["time"][0] == 0 and positions["tokens"][-1] == given[-1]["tokens"]


def test_a_restart_is_told_with_what_was_replayed_and_lost(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        lines(1, 2, 3, 4) + lines(5, 6, 7, 8, 9, at=2000),
    )
    (run / "metrics.abandoned.jsonl").write_text(jsonl(lines(5, 6, 7)))
    (run / "starts.jsonl").write_text(START % (999, "null", "null") + START % (2001, 4, 2) + END % 2012)
    document = report_on([run])
    first, second = told(document, "training")
    assert "started anew; to update 7; no end recorded" in first
    assert "went on from update 4: snapshot of 2, 2 replayed from the journal; to update 9; done" in second
    assert told(document, "lost") == ["updates 5 to 7 were logged and then done again (3 lines taken back)"]
    events = document["runs"][0]["events"]
    assert [event["time"] for event in events if event["row"] == "training"] == [[0, 8], [1002, 1013]]
    assert ("updates done twice", "3") in document["runs"][0]["facts"]


def test_runs_that_recorded_no_times_are_shown_over_their_updates(tmp_path: Path) -> None:
    old = [{"update": n, "samples": n, "train/loss": 1.0, "checkpoint/update": n // 4 * 4} for n in range(1, 9)]
    document = report_on([write_run(tmp_path / "old", old)])
    assert set(document["runs"][0]["positions"]["time"]) == {None}
    assert [event["update"] for event in document["runs"][0]["events"]] == [[0, None], [4, None], [8, None]]
    assert [each["kind"] for each in document["charts"]] == ["lines", "timeline"]
    assert chart(document, "timeline")["over"] == "update"


def test_times_that_are_none_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [*lines(1, 2), {"update": 3, "train/loss": 1.0, "time/unix": 1e300}])
    (run / "starts.jsonl").write_text(START % (1e300, "null", "null") + START % (999, "null", "null"))
    document = report_on([run])
    assert document["runs"][0]["positions"]["time"] == [2, 3, None]
    assert document["runs"][0]["problems"] == ["starts.jsonl: 1 line could not be read"]


def test_a_run_without_lines_is_no_error(tmp_path: Path) -> None:
    document = report_on([write_run(tmp_path / "new", [])])
    assert document["charts"] == [] and document["runs"][0]["problems"] == []


def test_what_is_broken_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [*lines(1, 2), *lines(3, **{"train/loss": "NaN"})])
    (run / "config.yaml").write_text("run: [unclosed")
    (run / "status.json").write_text("{")
    (run / "starts.jsonl").write_text("not json\n")
    (run / "checkpoints").write_text("no folder")
    with (run / "metrics.jsonl").open("a") as file:
        file.write("garbage\n")
    document = report_on([run])
    problems = "\n".join(document["runs"][0]["problems"])
    for part in (
        "config.yaml cannot be read",
        "1 line could not be read",
        "starts.jsonl: 1 line",
        "train/loss: 1 values",
    ):
        assert part in problems
    assert chart(document, "loss")["lines"][0]["values"] == [1.0, 0.5]
    assert document["runs"][0]["name"] == "run"


def test_the_shares_of_time_are_means_over_updates(tmp_path: Path) -> None:
    times = [
        {"update": 10, "time/update_ms": 100, "time/data_ms": 10, "comm/exposed_ms": 20},
        {"update": 40, "time/update_ms": 200, "time/data_ms": 10, "comm/exposed_ms": 40, "time/checkpoint_ms": 50},
    ]
    bars = chart(report_on([write_run(tmp_path / "run", times)]), "time-mean")
    means = {stack["name"]: stack["values"] for stack in bars["stacks"]}
    assert means == {
        "computation": [pytest.approx((70 + 3 * 100) / 4)],
        "exposed communication": [35],
        "data": [10],
        "checkpoints": [37.5],
    }


def test_runs_are_told_apart_by_folder_where_their_names_are_the_same(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, lines(1, 2)) for name in ("first", "second")]
    assert [run["name"] for run in report_on(runs)["runs"]] == ["first", "second"]


def test_many_keys_and_long_texts_are_bounded(tmp_path: Path) -> None:
    given = [{"update": 1, **{f"mine/{n}": 1.0 for n in range(500)}}]
    given += [{"update": n, "eval/sample": "x" * 100_000} for n in range(2, 300)]
    document = report_on([write_run(tmp_path / "run", given)])
    assert len(document["charts"]) == 60
    texts = document["runs"][0]["texts"]
    assert len(texts) == 40 and texts[-1]["update"] == 299 and len(texts[0]["text"]) == 20_000


def test_several_long_runs_share_the_points(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(n), lines(*range(1, 3000))) for n in range(2)]
    shown = chart(report_on(runs), "loss")["lines"]
    assert [len(line["values"]) <= 1000 and line["total"] == 2999 for line in shown] == [True, True]
    assert [np.max(line["values"]) for line in shown] == [1.0, 1.0]
