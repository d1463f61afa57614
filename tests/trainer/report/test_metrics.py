"""Reading metrics.jsonl: every value, and no line that stops it."""

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire.trainer.report.metrics import Metrics, parse_metrics


def parse(*lines: str | bytes) -> Metrics:
    return parse_metrics([line if isinstance(line, bytes) else f"{line}\n".encode() for line in lines])


def test_values_are_read_by_key_and_line() -> None:
    found = parse('{"update": 1, "lr": 0.5}', '{"update": 2, "lr": 0.1, "eval/loss": 3, "eval/sample": "text"}')
    assert found.columns["lr"].values.tolist() == [0.5, 0.1]
    assert found.columns["eval/loss"].lines.tolist() == [1]
    assert np.isnan(found.dense("eval/loss")[0])
    assert found.texts == {"eval/sample": [(1, "text")]}
    assert found.positions["update"].tolist() == [1, 2]
    assert np.isnan(found.positions["time"]).all()


def test_lines_that_cannot_be_read_are_counted_and_named() -> None:
    found = parse(
        '{"update": 1, "lr": 1}',
        "",
        "not json",
        "[1]",
        '{"lr": 1}',
        '{"update": true}',
        '{"update": -1}',
        b'{"update": 2, "x": "\xff"}\n',
        "[" * 100_000,
        '{"update": 3, "lr": 2}',
        b'{"update": 4, "l',
    )
    assert found.columns["lr"].values.tolist() == [1, 2]
    assert found.malformed == 9
    assert [number for number, _ in found.reasons] == [2, 3, 4, 5, 6, 7, 8, 9, 11]
    assert found.reasons[-1][1] == "cut off"
    assert "expected an object, found list" in found.reasons[2][1]


def test_values_without_a_number_are_told_apart_from_absent_ones() -> None:
    found = parse('{"update": 1, "x": "NaN"}', '{"update": 2, "x": "-Infinity"}', '{"update": 3, "x": 1e999}', "{}")
    assert found.not_finite() == {"x": 3}
    assert found.columns["x"].finite.values.tolist() == []
    assert found.columns["x"].values[1] == -math.inf


def test_what_is_neither_number_nor_text_is_left_out() -> None:
    found = parse('{"update": 1, "a": true, "b": null, "c": [1], "d": {"e": 1}, "f": 1' + "0" * 400 + "}")
    assert list(found.columns) == ["f"] and found.columns["f"].values[0] == math.inf


def test_a_file_without_lines_is_no_error() -> None:
    assert len(parse()) == 0


@given(st.lists(st.binary(max_size=60)))
def test_no_line_stops_it(lines: list[bytes]) -> None:
    found = parse_metrics(lines)
    assert len(found) + found.malformed == len(lines)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_keep_their_bits(values: list[float]) -> None:
    found = parse(*(json.dumps({"update": n, "x": value}) for n, value in enumerate(values)))
    assert found.dense("x").tolist() == values
