"""A run that stops where it was told goes on from there, and ends as one that never stopped."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from gradwire.checkpoint import Checkpointer
from gradwire.checkpoint.fork import fork
from gradwire.checkpoint.store import Store
from gradwire.schedulers import Duration, Plan, lr
from gradwire.trainer.loggers.base import Record, RunInfo
from gradwire.trainer.recovery import recover
from gradwire.trainer.settings import Settings
from gradwire.trainer.trainer import Trainer


class Points(Dataset[dict[str, Tensor]]):
    """Sixty-four points of a plane, each with its height."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.tensor([index / 64, (index % 7) / 7, 1.0])
        return {"x": x, "y": 2 * x[:1] - x[1:2]}


class Records:
    """What was logged."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def start(self, info: RunInfo) -> None: ...

    def log(self, record: Record) -> None:
        self.found.append(dict(record))

    def finish(self, status: str) -> None: ...


def squared(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch["x"]) - batch["y"]).square().mean(1)


def fit(
    store: Path, stop_at: str | None, every: str | None = "5 updates", rate: float = 0.1
) -> tuple[str, list[dict[str, Any]], Tensor]:
    """How the next part of a run in this store ended, what it logged, and its weights."""
    torch.manual_seed(0)
    model, records, checkpointer = nn.Linear(3, 1), Records(), Checkpointer(str(store))
    trainer = Trainer(
        model,
        SimpleNamespace(train=Points(), validation=Points()),
        torch.optim.SGD(model.parameters(), momentum=0.9),
        Plan(lr=rate * lr.Cosine(), batch=8, run_length="12 updates"),
        loss=squared,
        settings=Settings(
            evaluate_every=None if every is None else Duration.parse(every),
            stop_at=None if stop_at is None else Duration.parse(stop_at),
        ),
        checkpointer=checkpointer,
        loggers=[records],
    )
    recover(trainer, checkpointer, "latest-if-any")
    result = trainer.fit()
    return result.status, records.found, torch.cat([each.detach().flatten() for each in model.parameters()])


def test_a_run_in_parts_evaluates_at_their_ends_and_is_the_same_run(tmp_path: Path) -> None:
    parts = [fit(tmp_path / "parts", stop_at) for stop_at in ("3 updates", "50%", "50%", "100%")]
    _, whole, weights = fit(tmp_path / "whole", None)
    assert [status for status, _, _ in parts] == ["preempted", "preempted", "preempted", "done"]
    assert [[each["update"] for each in found if "eval/loss" in each] for _, found, _ in parts] == [
        [0, 3], [5, 6], [], [10, 12],
    ]  # fmt: skip
    assert "train/loss" in parts[1][1][-1]
    assert torch.equal(parts[-1][2], weights) and parts[-1][1][-1]["eval/loss"] == whole[-1]["eval/loss"]


def test_a_fork_that_goes_on_at_another_rate_is_the_run_that_changes_its_rate(tmp_path: Path) -> None:
    fit(tmp_path / "run", "50%", rate=0.05)
    fork(Store.open(str(tmp_path / "run")), Store.open(str(tmp_path / "fork")))
    _, found, weights = fit(tmp_path / "fork", None, rate=0.2)
    _, changed, same = fit(tmp_path / "run", None, rate=0.2)
    assert torch.equal(weights, same) and found[-1]["eval/loss"] == changed[-1]["eval/loss"]
    assert not torch.equal(weights, fit(tmp_path / "other", None, rate=0.2)[2])


def test_a_part_that_is_over_says_how_to_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(tmp_path, "3 updates", every=None)
    status, found, _ = fit(tmp_path, "16 samples", every=None)
    assert status == "preempted" and found == []
    assert "run.stop_at=16 samples is behind update 3: go on with another, or null" in caplog.text
