"""Lines of metrics: what goes into them, who gets them, and what becomes of one that could not be completed."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from gradwire.schedulers import Clock, Duration, Plan
from gradwire.trainer.communication import Communication
from gradwire.trainer.evaluation import EvaluationInterrupted
from gradwire.trainer.loggers import RunInfo
from gradwire.trainer.measuring import Measuring
from gradwire.trainer.records import Records
from gradwire.trainer.strategies import Single
from gradwire.trainer.times import Times
from gradwire.trainer.triggers import Every
from gradwire.trainer.update import Outcome

PLAN = Plan(lr=0.1, batch=8, run_length="10 updates")
CLOCK = Clock().advance(8, 8)


class Heard:
    """A logger that keeps what it hears."""

    def __init__(self) -> None:
        self.info = RunInfo()
        self.lines: list[Mapping[str, Any]] = []
        self.status = ""

    def start(self, info: RunInfo) -> None:
        self.info = info

    def log(self, record: Mapping[str, Any]) -> None:
        self.lines.append(record)

    def finish(self, status: str) -> None:
        self.status = status


def records_of(logger: Heard, rank: int = 0) -> Records:
    strategy = Single()
    strategy.rank = rank
    measuring = Measuring(Every(Duration(2, "updates"), PLAN), 0.9, needed=False)
    return Records([logger], strategy, Times(), measuring, Communication(strategy))


def interrupted() -> dict[str, float | str]:
    raise EvaluationInterrupted


def test_a_line_has_the_mean_loss_and_what_was_noted_once() -> None:
    heard = Heard()
    records = records_of(heard)
    outcome = Outcome(torch.tensor(6.0, dtype=torch.float64), 4, 4, 4, 0.5, skipped=False, stop=False, due=False)
    records.note({"hosts": 2})
    for _ in range(2):
        records.write(records.measured(CLOCK, PLAN.at(CLOCK), outcome))
    first, second = heard.lines
    assert (first["update"], first["samples"], first["tokens"]) == (1, 8, 8)
    assert (first["train/loss"], first["lr"], first["batch_size"], first["grad_norm"]) == (1.5, 0.1, 8, 0.5)
    assert first["hosts"] == 2 and "hosts" not in second


def test_only_the_first_ranks_loggers_hear() -> None:
    heard = Heard()
    records = records_of(heard, rank=1)
    records.start(RunInfo(name="a run"))
    records.write({"update": 1})
    records.finish("done")
    assert (heard.info.name, heard.lines, heard.status) == ("run", [], "")
    assert records.last == {"update": 1}


def test_a_line_whose_evaluation_was_interrupted_stays_until_it_is_complete() -> None:
    heard = Heard()
    records = records_of(heard)
    with pytest.raises(EvaluationInterrupted):
        records.evaluated(CLOCK, {"train/loss": 1.5}, interrupted)
    owing = records.pending
    assert owing == {"update": 1, "samples": 8, "tokens": 8, "train/loss": 1.5}
    records.write(records.evaluated(CLOCK, owing, lambda: {"eval/loss": 2.0}))
    (line,) = heard.lines
    assert records.pending is None
    assert line["train/loss"] == 1.5 and line["eval/loss"] == 2.0 and line["time/evaluation_ms"] >= 0


@pytest.mark.parametrize(("owing", "kept"), [(False, 7), (True, 6)])
def test_loggers_hear_which_of_their_lines_stand(*, owing: bool, kept: int) -> None:
    heard = Heard()
    records = records_of(heard)
    records.restored(4)
    records.replayed(7)
    records.pending = {"update": 7} if owing else None
    records.start(RunInfo())
    assert (heard.info.snapshot_update, heard.info.resumed_update) == (4, kept)


def test_numbers_are_those_of_the_very_update() -> None:
    records = records_of(Heard())
    records.write({"update": 3, "eval/loss": 2.0, "eval/sample": "text"})
    records.write({})
    assert records.numbers_of(3) == {"update": 3, "eval/loss": 2.0}
    assert records.numbers_of(4) == {}
