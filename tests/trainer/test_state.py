from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from gradwire.checkpoint import Checkpointer
from gradwire.comm import AllReduce
from gradwire.schedulers import Duration, Plan, Schedule
from gradwire.schedulers.batch import Constant, LinearWarmup
from gradwire.trainer import Settings, Trainer
from gradwire.trainer.data import DataError
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.loggers import RunInfo
from gradwire.trainer.loggers.base import Logger, Record
from gradwire.trainer.strategies import DataParallel


class WithValidation:
    """A source that is evaluated on as well."""

    def __init__(self) -> None:
        self.train = self.validation = Points()


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(3)}


def _loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = model(batch["x"]).square().mean(1)
    return loss


def _trainer(settings: Settings | None = None, strategy: DataParallel | None = None) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters())
    plan = Plan(lr=0.1, batch=8, run_length="3 updates")
    return Trainer(model, Points(), optimizer, plan, loss=_loss, settings=settings or Settings(), strategy=strategy)


def _agrees(rank: int) -> None:
    settings = Settings(check_replicas_every=Duration.parse("1 update"))
    strategy = DataParallel(AllReduce(), torch.device("cpu"))
    assert _trainer(settings, strategy).fit().clock.updates == 3


def test_running_statistics_of_single_ranks_are_no_mismatch_of_replicas(ranks: Callable[..., None]) -> None:
    ranks(2, _agrees)


def test_a_model_is_evaluated_on_other_data_than_the_stream_it_was_trained_on() -> None:
    trained = _trainer()
    trained.fit()
    state = trained.state()
    streamed = replace(state, shared={**state.shared, "stream": {"ordinal": 24, "block": 1, "reader": None}})
    with pytest.raises(DataError, match="streaming"):
        _trainer().restore(streamed)
    evaluated = _trainer()
    evaluated.restore_model(streamed)
    assert evaluated.clock.updates == 3
    for mine, theirs in zip(evaluated.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def _evaluated(folder: Path, stop_in: str | None) -> tuple[Trainer, Checkpointer]:
    """A trainer that evaluates at its end, and is asked to stop in its first phase of that name after the updates."""
    phases: list[str] = []
    checkpointer = Checkpointer(str(folder))
    model = nn.Linear(3, 3)
    trainer = Trainer(
        model,
        WithValidation(),
        torch.optim.SGD(model.parameters()),
        Plan(lr=0.1, batch=8, run_length="3 updates"),
        loss=_loss,
        settings=Settings(evaluate_every=Duration.parse("3 updates")),
        checkpointer=checkpointer,
        stop_requested=lambda: trainer.clock.updates == 3 and phases[-1] == stop_in,
        beat=lambda phase, update: phases.append(phase),
    )
    return trainer, checkpointer


def test_an_evaluation_that_was_interrupted_at_the_end_is_made_up_for_and_saved(tmp_path: Path) -> None:
    asked, store = _evaluated(tmp_path, "evaluation")
    assert asked.fit().status == "preempted"
    owing, commit = store.restore("latest")
    assert owing.shared["pending"]["update"] == 3
    assert "eval/loss" not in commit.metrics
    resumed, store = _evaluated(tmp_path, None)
    resumed.restore(owing)
    result = resumed.fit()
    assert result.status == "done"
    complete, commit = store.restore("latest")
    assert complete.shared["pending"] is None
    assert commit.metrics["eval/loss"] == result.record["eval/loss"]


class _Shown(Logger):
    """Keeps what loggers are told."""

    def __init__(self) -> None:
        self.info = RunInfo()

    def start(self, info: RunInfo) -> None:
        self.info = info

    def log(self, record: Record) -> None: ...

    def finish(self, status: str) -> None: ...


def _planned(schedule: Schedule, length: str, stop_after: int | None = None) -> tuple[Trainer, _Shown]:
    model, shown = nn.Linear(3, 3), _Shown()
    trainer = Trainer(
        model,
        Points(),
        torch.optim.SGD(model.parameters()),
        Plan(lr=0.1, batch=8 * schedule, run_length=length),
        loss=_loss,
        loggers=[shown],
        stop_requested=lambda: trainer.clock.updates + 1 == stop_after,
    )
    return trainer, shown


def test_a_run_that_goes_on_by_another_plan_counts_the_updates_that_it_makes_altogether() -> None:
    first, _ = _planned(LinearWarmup("100%"), "100 samples", stop_after=12)
    assert first.fit().status == "preempted"
    second, shown = _planned(Constant(), "100 samples")
    second.restore(first.state())
    assert (first.clock.updates, second.plan.total_updates) == (12, 13)
    assert second.fit().clock.updates == shown.info.total_updates > 13


def test_a_run_that_is_past_its_new_end_is_refused_with_both_places() -> None:
    first, _ = _planned(Constant(), "40 samples")
    first.fit()
    same, _ = _planned(Constant(), "40 samples")
    same.restore(first.state())
    assert same.fit().status == "done"
    shorter, _ = _planned(Constant(), "24 samples")
    with pytest.raises(
        StateMismatchError, match=r"update 5, after 40 samples.* end after 24 samples.*longer run.length"
    ):
        shorter.restore(first.state())
    evaluated, _ = _planned(Constant(), "24 samples")
    evaluated.restore_model(first.state())
    assert evaluated.clock.updates == 5
