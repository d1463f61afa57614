"""A small sample of benchmarks/diloco_netlab.py: real links, and what its verdict follows from."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.diloco_netlab import Apart, train_apart, verdict
from benchmarks.training_contenders import train
from benchmarks.training_job import Job, Run
from benchmarks.training_rows import merged, row

SMALL = Job("ddp", 0, updates=8, every=8, width=64, layers=2, context=16, validation=4)
APART = Apart.parse("diloco:every=4:fragments=2:overlap=1:codec=int8")


def test_hosts_send_less_and_learn_the_same(lab_ranks: Callable[..., list[Any]]) -> None:
    assert SMALL.data().train and SMALL.data().validation  # made once, not by all ranks at once
    ddp = merged(lab_ranks(2, 2, train, SMALL))
    plain = merged(lab_ranks(2, 2, train_apart, replace(SMALL, contender="diloco:every=4")))
    streaming = merged(lab_ranks(2, 2, train_apart, replace(SMALL, contender=APART.name)))
    assert ddp.losses[0] == plain.losses[0] == streaming.losses[0]
    assert ddp.sent > 0.9 * 4 * plain.sent and plain.sent > 2 * streaming.sent
    for run in (plain, streaming):
        assert run.losses[-1][1] < run.losses[0][1]
        assert run.losses[-1][1] == pytest.approx(ddp.losses[-1][1], rel=0.1)


def test_names_say_how_a_contender_trains() -> None:
    assert Apart(APART.name, every=4, fragments=2, overlap=1, codec="int8") == APART
    for name in ("ddp", "diloco:ever=4", "diloco:every"):
        with pytest.raises(ValueError, match="is no contender"):
            Apart.parse(name)


def test_the_verdict_asks_for_all_three(capsys: pytest.CaptureFixture[str]) -> None:
    ddp = Run([5.0] * 8, [(0, 5.0), (8, 4.0)], sent=60.0)
    floor = Run([1.0] * 8)
    good = Run([1.1] * 8, [(0, 5.0), (8, 4.0)], sent=10.0)
    late = Run([1.1] * 8, [(0, 5.0), (8, 4.05)], sent=10.0)
    longer = Run([1.1] * 16, [(0, 5.0), (8, 4.05), (16, 3.95)], sent=10.0)
    rows = [row([run], [ddp], floor, 8) for run in (ddp, good, late, longer)]
    assert verdict(APART, rows[0], rows[1], rows[3])["met"]
    assert verdict(APART, rows[0], rows[2], rows[3])["speed"] == pytest.approx(40 / (1.1 * 12))
    far = row([replace(late, losses=[(0, 5.0), (8, 4.2)])], [ddp], floor, 8)
    assert not verdict(APART, rows[0], far, far)["met"]
    much = row([replace(good, sent=20.0)], [ddp], floor, 8)
    assert not verdict(APART, rows[0], much, much)["met"]
    printed = capsys.readouterr().out.splitlines()
    assert [line.endswith("NOT met") for line in printed] == [False, False, True, True]
