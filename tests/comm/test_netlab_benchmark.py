"""The all-reduce benchmark over the laboratory's links: what it counts."""

import statistics
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.all_reduce_netlab import Job, measure, show
from gradwire.comm.benchmark import Effort, Shape, contender, faults

SHAPE = Shape(2, 2, (("local", 2), ("node", 2)))
ELEMENTS = 65_536
NAMES = ("gloo", "p2p", "two_shot@0.125", "two_shot/int8", "p2p/int8", "two_shot/nonesuch")


def test_contenders_are_measured_checked_and_compared_with_exchanges_of_their_bytes(
    lab_ranks: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(SHAPE, ELEMENTS, NAMES, Effort(2, 0.02), 25e6)
    table = lab_ranks(2, 2, measure, job)[0]
    assert "nonesuch" in table.unavailable["two_shot/nonesuch"]
    rows = table.rows
    assert list(rows) == list(NAMES[:-1])
    assert all(len(row.seconds) == 2 and row.wire >= row.payload for row in rows.values())
    assert {row.wire_from for row in rows.values()} == {"interface"}
    assert rows["two_shot@0.125"].payload == 4 * ELEMENTS
    assert ELEMENTS < rows["two_shot/int8"].payload < 1.02 * ELEMENTS  # a byte each, and the blocks' scales
    assert all(rows[name].same_bits for name in NAMES[:4] if contender(name).reduces)
    assert rows["two_shot@0.125"].error == rows["gloo"].error == 0 < rows["two_shot/int8"].error < 0.0098
    assert rows["gloo"].over_backend == rows["p2p/int8"].over_exchange == (1.0, 1.0, 1.0)
    quick = rows["two_shot/int8"]
    least = (quick.calls * quick.payload - 256 * 1024) / 25e6  # the bucket's burst comes on top of the rate
    assert all(quick.calls * seconds >= least for seconds in quick.seconds)
    assert quick.of_bound[0] == pytest.approx(statistics.median(quick.payload / 25e6 / one for one in quick.seconds))
    assert faults(rows) == []
    show("256KB", job, table, "200mbit")
    assert "two_shot/nonesuch     not available" in capsys.readouterr().out
