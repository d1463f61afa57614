"""The training benchmark: contenders train alike over the laboratory's links, and its figures follow from the runs."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.training_contenders import contender, train
from benchmarks.training_job import Job, Run
from benchmarks.training_netlab import flat_bytes
from benchmarks.training_overlap import KINDS, Overlap, measure_overlap, summary
from benchmarks.training_rows import merged, row, show, time_to

SMALL = Job("ddp", 0, updates=4, every=4, width=64, layers=1, context=16, validation=4)


@pytest.fixture(scope="module")
def data() -> None:
    job = SMALL
    assert job.data().train and job.data().validation  # made once, not by all ranks at once


def test_contenders_train_alike_and_send_what_their_codec_leaves(
    lab_ranks: Callable[..., list[Any]], data: None
) -> None:
    job = SMALL
    ddp, ours, int8 = (
        merged(lab_ranks(2, 2, train, Job(**{**job.__dict__, "contender": name})))
        for name in ("ddp", "gradwire", "gradwire/int8")
    )
    assert ddp.losses[0] == ours.losses[0] == int8.losses[0] and ddp.losses[0][1] == pytest.approx(5.5, abs=0.15)
    assert ours.losses[-1][0] == 4 and ours.losses[-1][1] == pytest.approx(ddp.losses[-1][1], rel=1e-4)
    assert int8.losses[-1][1] == pytest.approx(ddp.losses[-1][1], rel=0.01) and ddp.losses[-1][1] < ddp.losses[0][1]
    assert all(len(run.seconds) == 4 and run.processor > 0 for run in (ddp, ours, int8))
    assert flat_bytes(job) < ddp.sent and int8.sent < 0.4 * ours.sent < 0.4 * ddp.sent
    assert int8.traffic["node"]["sent"] < 0.3 * ours.traffic["node"]["sent"]


def test_overlap_is_measured_in_turns(lab_ranks: Callable[..., list[Any]], data: None) -> None:
    job = Job(**{**SMALL.__dict__, "contender": "gradwire/int8", "updates": 4})
    told = summary(lab_ranks(2, 2, measure_overlap, job), 2)
    assert all(told["seconds"][kind] > 0 for kind in KINDS) and told["processor_alone"] > 0


def test_what_is_hidden_is_what_the_update_with_communication_does_not_take_longer() -> None:
    seconds = {"with": [1.2] * 4, "without": [1.0] * 4, "backward": [0.7] * 4, "alone": [0.8] * 4}
    busy = {"with": [0.3] * 4, "without": [0.2] * 4, "backward": [0.1] * 4, "alone": [0.2] * 4}
    told = summary([Overlap(seconds, busy), Overlap(seconds, busy)], 2)
    assert told["hidden"] == (pytest.approx(0.75),) * 3
    assert told["waiting_hidden"][0] == pytest.approx(1 - (0.2 - 0.1) / (0.8 - 0.2))
    assert (told["processor_alone"], told["processor_within"]) == (0.4, pytest.approx(0.2))


def test_the_time_to_a_loss_lies_between_two_evaluations() -> None:
    run = Run([1.0, 1.0, 2.0, 2.0], [(0, 5.0), (2, 4.0), (4, 3.0)])
    assert time_to(5.0, run) == 0.0 and time_to(4.0, run) == 2.0 and time_to(3.5, run) == 4.0
    assert time_to(2.9, run) is None


def test_rows_compare_with_plain_ddp_and_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    ddp = Run([5.0] * 6, [(0, 5.0), (6, 4.0)], processor=1.0, sent=100.0)
    fast = Run([1.2] * 6, [(0, 5.0), (6, 4.0)], processor=1.5, sent=25.0)
    floor = Run([1.0] * 6)
    told = row([fast, fast], [ddp, ddp], floor, 6)
    assert told.of_floor == (pytest.approx(1.2),) * 3 and told.waiting == pytest.approx(1 - 1 / 1.2)
    assert told.speedup == pytest.approx(30 / 7.2) and told.difference == [0.0, 0.0]
    show({"ddp": row([ddp], [ddp], floor, 6), "gradwire/int8": told}, floor, 6)
    printed = capsys.readouterr().out
    assert "4.17×" in printed and "choose fewer" not in printed


def test_names_stand_for_contenders() -> None:
    with pytest.raises(ValueError, match="'dpd' is no contender"):
        contender("dpd")
