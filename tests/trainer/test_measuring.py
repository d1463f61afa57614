"""Training by plans of every kind, measured ones too: cut in the middle and continued, it is the same run."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradwire.checkpoint import Checkpointer
from gradwire.comm import AllReduce
from gradwire.schedulers import Clock, Coupled, Duration, Plan, Schedule
from gradwire.schedulers.adascale import AdaScale
from gradwire.schedulers.batch import Doubling, LinearWarmup, Ramp, Staged
from gradwire.schedulers.coupling import CriticalBatchWarmup, GrowInsteadOfDecay, Seesaw
from gradwire.schedulers.lr import Cosine, OneCycle, StepDecay, Warmup, WarmupStableDecay
from gradwire.schedulers.measured import NoiseScaleBatch
from gradwire.schedulers.noise_scale import Norms
from gradwire.schedulers.scaling import Linear, NoScaling, Scaling, SquareRoot
from gradwire.trainer import Settings, Trainer
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.errors import NoiseError
from gradwire.trainer.measuring import Measuring
from gradwire.trainer.strategies import DataParallel
from gradwire.trainer.triggers import Every
from gradwire.trainer.update import Outcome

LENGTH = "480 samples"
PLANS: dict[str, dict[str, Any]] = {
    "warm-up and square root": {"batch": 32 * LinearWarmup("25%"), "scaling": SquareRoot(), "lr": 0.05 * Cosine()},
    "staged": {"batch": 32 * Staged("0:8 160:16 320:32", "samples"), "lr": 0.05 * OneCycle()},
    "ramp": {"batch": 32 * Ramp(8, increment=8, length="240 samples"), "lr": 0.05 * WarmupStableDecay("10%", "20%")},
    "doubling": {"batch": 32 * Doubling(start=8, every="100 samples"), "scaling": Linear(), "lr": 0.05},
    "Smith": {"batch": 32 * GrowInsteadOfDecay(start=8), "lr": 0.05 * StepDecay(at=["30%", "60%"], factor=0.5)},
    "Seesaw": {"batch": 32 * Seesaw(start=8), "lr": 0.05 * Warmup("10%").then(Cosine())},
    "critical": {"batch": 32 * CriticalBatchWarmup(start=8, thresholds=["20%", "50%"]), "lr": 0.05},
    "measured critical": {"batch": 32 * CriticalBatchWarmup(start=8), "lr": 0.05},
    "noise scale": {"batch": 32 * NoiseScaleBatch(start=8, hysteresis=1.1), "lr": 0.05 * Cosine()},
    "AdaScale": {"batch": 16, "scaling": AdaScale(reference=8), "lr": 0.05 * StepDecay(at=["50%"], factor=0.5)},
}
MEASURED = ("measured critical", "noise scale", "AdaScale")


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """A linear problem with noise, so that the noise scale is finite."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.randn(6)
        return {"x": x, "y": x.sum().reshape(1) + torch.randn(1)}


def _loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = (model(batch["x"]) - batch["y"]).square().mean(1)
    return loss


class Seen(Callback):
    """What each update did, and a wish to stop after one of them."""

    def __init__(self, stop_after: int | None) -> None:
        self.stop_after = stop_after
        self.steps: list[tuple[int, float]] = []
        self.stop = False

    def on_update(self, trainer: Trainer, outcome: Outcome) -> None:
        self.steps.append((trainer.clock.samples, trainer.optimizer.param_groups[0]["lr"]))
        self.stop = trainer.clock.updates == self.stop_after


def trainer_of(
    store: Path | Checkpointer,
    stop_after: int | None,
    strategy: DataParallel | None = None,
    micro: int = 4,
    **plan: Any,
) -> tuple[Trainer, Seen]:
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), Seen(stop_after)
    trainer = Trainer(
        model,
        Points(),
        torch.optim.SGD(model.parameters(), momentum=0.9),
        Plan(**({"run_length": LENGTH} | plan)),
        loss=_loss,
        settings=Settings(micro=micro, log_every=1, noise_scale_every=Duration(2, "updates"), noise_scale_decay=0.8),
        checkpointer=Checkpointer(str(store)) if isinstance(store, Path) else store,
        callbacks={"seen": seen},
        strategy=strategy,
        stop_requested=lambda: seen.stop,
    )
    return trainer, seen


@pytest.mark.parametrize("name", PLANS)
def test_a_run_cut_in_the_middle_of_its_schedule_ends_in_the_same_bits(name: str, tmp_path: Path) -> None:
    whole, all_steps = trainer_of(tmp_path / "whole", None, **PLANS[name])
    assert whole.fit().status == "done"
    cut_after = len(all_steps.steps) // 2
    first, before = trainer_of(tmp_path / "cut", cut_after, **PLANS[name])
    assert first.fit().status == "preempted"
    second, after = trainer_of(tmp_path / "cut", None, **PLANS[name])
    second.restore(Checkpointer(str(tmp_path / "cut")).restore("latest")[0])
    assert second.fit().status == "done"
    assert before.steps + after.steps == all_steps.steps
    assert second.decisions.state_dict() == whole.decisions.state_dict()
    for mine, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", MEASURED)
def test_measured_plans_do_decide_and_say_why(name: str, tmp_path: Path) -> None:
    trainer, _ = trainer_of(tmp_path, None, **PLANS[name])
    record = trainer.fit().record
    decided = trainer.decisions.of("noise_scale")
    assert decided
    assert all("batch" in decision.reason and "lr" in decision.reason for decision in decided)
    assert [entry.samples for entry in trainer.plan.noise] == [decision.samples for decision in decided]
    assert record["total_updates"] == record["update"]


def _goes_on(rank: int, folder: str, name: str, steps: list[tuple[int, float]], decided: list[dict[str, Any]]) -> None:
    strategy = DataParallel(AllReduce(), torch.device("cpu"))
    store = Checkpointer(folder, group=dist.group.WORLD)
    trainer, seen = trainer_of(store, None, strategy, **PLANS[name])
    trainer.restore(store.restore("latest")[0])
    planned = [trainer.plan.at(Clock(samples=samples)) for samples, _ in [(0, 0.0), *steps[:-1]]]
    assert [step.lr for step in planned] == [lr for _, lr in steps]  # the past is repeated from the log
    assert trainer.fit().status == "done"
    assert trainer.decisions.state_dict()[: len(decided)] == decided
    if name not in MEASURED:
        expected = [(clock.samples + step.batch_size, step.lr) for clock, step in trainer.plan.updates()]
        assert seen.steps == expected[len(steps) :]


@pytest.mark.parametrize("name", ["Seesaw", "warm-up and square root", "noise scale", "AdaScale"])
def test_a_run_goes_on_by_the_same_plan_and_log_on_another_number_of_ranks(
    ranks: Callable[..., None], name: str, tmp_path: Path
) -> None:
    trainer, seen = trainer_of(tmp_path, 12, **PLANS[name])
    assert trainer.fit().status == "preempted"
    ranks(2, _goes_on, str(tmp_path), name, seen.steps, trainer.decisions.state_dict())


def test_the_noise_scale_is_in_the_metrics_by_group(tmp_path: Path) -> None:
    trainer, _ = trainer_of(tmp_path, None, batch=16, lr=0.05)
    record = trainer.fit().record
    assert 0 < record["noise_scale"] < math.inf
    assert "noise_scale/weight_decay=0" in record
    squared, variance = record["gradient_squared"], record["gradient_variance"]
    assert variance * 16 / squared == pytest.approx(record["noise_scale"])
    assert "total_updates" not in record


def test_a_rule_that_cannot_measure_does_not_begin(tmp_path: Path) -> None:
    trainer, _ = trainer_of(tmp_path, None, micro=8, **PLANS["noise scale"])
    with pytest.raises(NoiseError, match=r"follow the noise scale, but one rank with one micro-batch .* batch\.micro"):
        trainer.fit()


def test_another_way_to_measure_begins_its_averages_anew() -> None:
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = Plan(lr=0.1, batch=8, run_length=LENGTH)
    measuring = Measuring(Every(Duration(1, "updates"), plan), 0.9, needed=False)
    measuring.prepare(model, optimizer.param_groups, world_size=1, micro_batches=1)
    measuring.take(lambda: {"norm_layers": Norms(small=2.0, big=1.0, small_size=1, big_size=8)})
    measuring.prepare(model, optimizer.param_groups, world_size=1, micro_batches=1)
    assert "noise_scale/norm_layers" in measuring.metrics(8)
    measuring.prepare(model, optimizer.param_groups, world_size=2, micro_batches=1)
    assert measuring.metrics(8) == {}


def test_a_run_that_cannot_measure_and_need_not_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, _ = trainer_of(tmp_path, None, micro=8, batch=8, lr=0.05)
    with caplog.at_level(logging.INFO, "gradwire"):
        record = trainer.fit().record
    assert "noise_scale" not in record
    [message] = [message for message in caplog.messages if "noise scale" in message]
    assert message.startswith("the noise scale is not measured: one rank with one micro-batch")


def test_kinds_of_plans_are_what_the_trainer_takes() -> None:
    for plan in PLANS.values():
        assert isinstance(plan["batch"], int | Schedule | Coupled)
        assert isinstance(plan.get("scaling", NoScaling()), Scaling)


def _unusable() -> dict[str, Norms]:
    raise NoiseError("the layers saw other rows than samples")


@pytest.mark.parametrize("needed", [True, False])
def test_what_cannot_be_measured_ends_only_a_run_that_needs_it(needed: bool, caplog: pytest.LogCaptureFixture) -> None:
    plan = Plan(lr=0.1, batch=8, run_length="10 updates")
    measuring = Measuring(Every(Duration(1, "updates"), plan), 0.9, needed=needed)
    model = nn.Linear(2, 2)
    measuring.prepare(model, torch.optim.SGD(model.parameters()).param_groups, 1, 2)
    assert measuring.meter(Clock(), 8) is not None
    if needed:
        with pytest.raises(NoiseError):
            measuring.take(_unusable)
        return
    assert measuring.take(_unusable) is None
    assert "the noise scale is not measured: the layers saw other rows" in caplog.text
    assert measuring.meter(Clock(), 8) is None
