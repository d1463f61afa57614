"""The all-reduce benchmark over the laboratory's links: what it counts and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.all_reduce_contenders import Gloo, Ours, PointToPoint, Shape, contender
from benchmarks.all_reduce_netlab import Job, measure, rows, show

SHAPE = Shape(2, 2, (("local", 2), ("node", 2)))
ELEMENTS = 65_536
NAMES = ("gloo", "p2p", "two_shot@0.125", "two_shot/int8", "p2p/int8", "two_shot/nonesuch")


def test_contenders_are_measured_checked_and_compared_with_exchanges_of_their_bytes(
    lab_ranks: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(SHAPE, ELEMENTS, NAMES, 2, 0.02, 25e6)
    table = rows(lab_ranks(2, 2, measure, job), job)
    assert list(table) == list(NAMES)
    assert "nonesuch" in table["two_shot/nonesuch"]["unavailable"]
    measured = {name: table[name] for name in NAMES[:-1]}
    assert all(len(row["seconds"]) == 2 and row["sent"] >= row["payload"] for row in measured.values())
    assert measured["two_shot@0.125"]["payload"] == 4 * ELEMENTS
    assert ELEMENTS < measured["two_shot/int8"]["payload"] < 1.02 * ELEMENTS  # a byte each, and the blocks' scales
    assert all(measured[name]["same_bits"] for name in NAMES[:4] if contender(name).reduces)
    assert measured["two_shot@0.125"]["relative_error"] < 1e-6 < measured["two_shot/int8"]["relative_error"] < 0.0098
    assert measured["gloo"]["over_gloo"] == measured["p2p/int8"]["over_p2p"] == (1.0, 1.0, 1.0)
    show("256KB", job, table, "200mbit")
    assert "two_shot/nonesuch     not available" in capsys.readouterr().out


def test_four_hosts_send_three_halves_of_the_tensor() -> None:
    assert Shape(4, 1, (("node", 4),)).payload(1000, None) == 6000


def test_blocks_of_fast_contenders_hold_more_calls_but_no_more_than_memory_does() -> None:
    small, large = (Job(SHAPE, count, ("gloo",), 1, 0.5, 25e6) for count in (ELEMENTS, 16 * 2**20))
    assert small.calls(contender("gloo")) == 48
    assert large.calls(contender("gloo")) == 1
    assert Job(SHAPE, 1, ("gloo",), 1, 0.5, 25e6).calls(contender("gloo")) == 200


def test_names_stand_for_contenders() -> None:
    assert contender("gloo") == Gloo("gloo")
    assert contender("p2p/int4") == PointToPoint("p2p/int4", "int4")
    assert contender("ring/int8@0.5+rotate") == Ours("ring/int8@0.5+rotate", "ring", "int8", 0.5, True)
    with pytest.raises(ValueError, match="'ring//' is no contender"):
        contender("ring//")
