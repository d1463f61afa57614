from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from gradwire.checkpoint import Checkpointer
from gradwire.comm import AllReduce
from gradwire.schedulers import Duration, Plan
from gradwire.trainer import Settings, Trainer
from gradwire.trainer.data import DataError
from gradwire.trainer.strategies import DataParallel
from tests.ranks import run_ranks


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


def test_running_statistics_of_single_ranks_are_no_mismatch_of_replicas() -> None:
    run_ranks(2, _agrees)


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
