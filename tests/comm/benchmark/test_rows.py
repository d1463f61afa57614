"""What the contest's figures say."""

import math

import pytest

from gradwire.comm.benchmark import Measured, Shape, faults, rows
from gradwire.comm.benchmark.contenders import contender
from gradwire.comm.benchmark.contest import limit

SHAPE = Shape(2, 2, (("local", 2), ("node", 2)))


def measured(seconds: float, error: float = 0.0, same: bool = True, sent: float = math.nan) -> Measured:
    return Measured(1, [seconds] * 3, [sent] * 3, [100.0] * 3, [error, 0.0, 0.0], same)


def test_bandwidths_bound_and_ratios_follow_from_the_seconds() -> None:
    row = rows({"gloo": measured(2.0), "ring": measured(0.5)}, SHAPE, 1000, "gloo", 10_000.0)["ring"]
    assert (row.milliseconds, row.algbw, row.busbw, row.payload) == (500.0, 8000.0, 12_000.0, 4000)
    assert row.of_bound == (pytest.approx(0.8),) * 3 and row.over_backend == (4.0, 4.0, 4.0)
    assert row.over_exchange is None


def test_wire_bytes_are_the_interfaces_where_it_could_be_read() -> None:
    table = rows({"gloo": measured(1.0, sent=5000.0), "ring": measured(1.0)}, SHAPE, 1000, "gloo", None)
    assert (table["gloo"].wire, table["gloo"].wire_from) == (5000.0, "interface")
    assert (table["ring"].wire, table["ring"].wire_from, table["ring"].of_bound) == (100.0, "meters", None)


def test_any_error_without_a_codec_different_bits_and_nan_are_faults() -> None:
    found = {
        "gloo": measured(1.0),
        "ring": measured(1.0, error=1e-9),
        "ring/int8": measured(1.0, error=0.04),
        "ring/fp8": measured(1.0, error=math.nan),
        "two_shot": measured(1.0, same=False),
    }
    lines = faults(rows(found, SHAPE, 1_000_000, "gloo", None))
    assert [line.partition(":")[0] for line in lines] == ["ring", "ring/fp8", "two_shot"]
    assert "expected the exact mean" in lines[0] and "different bits" in lines[2]


def test_limits_are_the_codecs_own() -> None:
    assert limit(contender("gloo"), 10**6) == 0.0
    assert limit(contender("ring/int8"), 10**12) == pytest.approx(0.05, rel=1e-4)
    assert limit(contender("ring/top_k"), 10**12) == pytest.approx(1.0, rel=1e-4)
