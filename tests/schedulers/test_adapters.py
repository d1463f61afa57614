import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.schedulers import Clock, Plan, PlanError, PlannedBatches, ScheduleError, torch_scheduler
from gradwire.schedulers.batch import LinearWarmup
from gradwire.schedulers.lr import LinearDecay, Warmup
from gradwire.schedulers.scaling import NoScaling, Scaling, SquareRoot

LENGTH = 300


def growing(scaling: Scaling = NoScaling(), **more: Any) -> Plan:  # noqa: B008 - frozen
    settings: dict[str, Any] = {"granule": 4, "context": 3, "epoch_samples": LENGTH, "run_length": "3 epochs"}
    return Plan(
        lr=0.1 * Warmup("10%").then(LinearDecay()), batch=32 * LinearWarmup("40%"), scaling=scaling, **settings | more
    )


def sgd(*ratios: float) -> torch.optim.SGD:
    groups = [{"params": nn.Linear(2, 2).parameters(), "lr": 0.1 * ratio} for ratio in ratios or (1.0,)]
    return torch.optim.SGD(groups, lr=0.1)


def step(optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
    optimizer.step()
    scheduler.step()


def test_every_update_has_the_plans_learning_rate() -> None:
    plan, optimizer = growing(), sgd()
    scheduler = torch_scheduler(plan, optimizer)
    assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    seen = []
    for clock, planned in plan.updates():
        assert scheduler.clock == clock
        assert optimizer.param_groups[0]["lr"] == planned.lr == scheduler.get_last_lr()[0]
        seen.append(planned.lr)
        step(optimizer, scheduler)
    assert len(set(seen)) > 50
    assert plan.finished(scheduler.clock)
    assert scheduler.clock.tokens == 3 * plan.total_samples == 2700
    assert optimizer.param_groups[0]["lr"] == 0.0


def test_the_clock_stands_still_at_the_end_of_the_plan() -> None:
    plan, optimizer = growing(run_length="2 updates"), sgd()
    scheduler = torch_scheduler(plan, optimizer)
    for _ in range(5):
        step(optimizer, scheduler)
    assert scheduler.clock.updates == 2
    assert scheduler.clock.samples == plan.total_samples


def test_groups_keep_their_ratio_to_the_plans_peak() -> None:
    plan, optimizer = growing(SquareRoot(reference=8)), sgd(1.0, 0.25, 3.0)
    scheduler = torch_scheduler(plan, optimizer)
    for _, planned in plan.updates():
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([planned.lr, 0.25 * planned.lr, 3 * planned.lr], rel=1e-12)
        assert scheduler.get_last_lr() == rates
        step(optimizer, scheduler)


def test_betas_and_epsilon_follow_where_the_plan_scales_them() -> None:
    plan = growing(SquareRoot(reference=8, adapt_betas=True), betas=(0.9, 0.999), eps=1e-8)
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters(), lr=0.1)
    scheduler = torch_scheduler(plan, optimizer)
    seen = set()
    for _, planned in plan.updates():
        group = optimizer.param_groups[0]
        assert (group["lr"], group["betas"], group["eps"]) == (planned.lr, planned.betas, planned.eps)
        seen.add(group["betas"])
        step(optimizer, scheduler)
    assert any(betas == pytest.approx((0.6, 0.996)) for betas in seen)


def test_without_betas_in_the_plan_the_optimizers_own_stay() -> None:
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters(), lr=0.1, betas=(0.8, 0.9), eps=1e-3)
    scheduler = torch_scheduler(growing(SquareRoot(reference=8)), optimizer)
    step(optimizer, scheduler)
    assert (optimizer.param_groups[0]["betas"], optimizer.param_groups[0]["eps"]) == ((0.8, 0.9), 1e-3)


def test_a_learning_rate_in_a_tensor_stays_in_that_tensor() -> None:
    plan = growing()
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters(), lr=torch.tensor(0.1, dtype=torch.float64))
    tensor = optimizer.param_groups[0]["lr"]
    scheduler = torch_scheduler(plan, optimizer)
    step(optimizer, scheduler)
    scheduler.load_state_dict(scheduler.state_dict())
    assert optimizer.param_groups[0]["lr"] is tensor
    assert tensor.item() == plan.at(scheduler.clock).lr


def test_a_resumed_scheduler_goes_on_where_it_was_saved() -> None:
    plan, optimizer = growing(), sgd(1.0, 0.5)
    scheduler = torch_scheduler(plan, optimizer)
    for _ in range(20):
        step(optimizer, scheduler)
    saved, saved_optimizer = scheduler.state_dict(), optimizer.state_dict()
    assert saved == scheduler.clock.to_dict()
    resumed_optimizer = sgd(1.0, 0.5)
    resumed_optimizer.load_state_dict(saved_optimizer)
    resumed = torch_scheduler(plan, resumed_optimizer)
    resumed.load_state_dict(saved)
    assert resumed.last_epoch == 20
    for _ in range(10):
        assert resumed.clock == scheduler.clock
        assert resumed.get_last_lr() == scheduler.get_last_lr() == [g["lr"] for g in resumed_optimizer.param_groups]
        step(optimizer, scheduler)
        step(resumed_optimizer, resumed)


def test_a_scheduler_can_begin_at_a_clock() -> None:
    plan = growing()
    clock, planned = next(itertools.islice(plan.updates(), 20, None))
    scheduler = torch_scheduler(plan, sgd(), clock)
    assert scheduler.get_last_lr() == [planned.lr]
    assert scheduler.last_epoch == 20


def test_an_optimizer_whose_rates_have_nothing_to_do_with_the_plan_is_refused() -> None:
    with pytest.raises(PlanError, match=r"peak learning rate is 0\.1, but the optimizer's groups have 0\.001: make"):
        torch_scheduler(growing(), torch.optim.Adam(nn.Linear(2, 2).parameters()))


def test_an_epoch_given_to_step_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"step\(3\)"):
        torch_scheduler(growing(), sgd()).step(3)


@pytest.mark.parametrize("world_size", [1, 3])
def test_sizes_are_the_planned_ones_and_every_epoch_is_covered_exactly_once(world_size: int) -> None:
    plan = growing()
    ranks = [PlannedBatches(plan, LENGTH, seed=5, rank=rank, world_size=world_size) for rank in range(world_size)]
    updates = list(zip(*ranks, strict=True))
    sizes = [planned.batch_size for _, planned in plan.updates()]
    assert [sum(map(len, shares)) for shares in updates] == sizes
    assert all(max(map(len, shares)) - min(map(len, shares)) <= 1 for shares in updates)
    assert len(ranks[0]) == len(updates) == plan.total_updates
    seen = [index for shares in updates for indices in shares for index in indices]
    epochs = [seen[start : start + LENGTH] for start in range(0, 3 * LENGTH, LENGTH)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(LENGTH))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_order_depends_on_the_seed_alone() -> None:
    first, same, other = (list(PlannedBatches(growing(), LENGTH, seed=seed)) for seed in (1, 1, 2))
    assert first == same
    assert first != other


@given(st.integers(1, 70), st.integers(0, 60), st.integers(1, 4))
def test_a_resumed_sampler_hands_out_what_is_left(length: int, done: int, world_size: int) -> None:
    plan = Plan(lr=0.1, batch=24 * LinearWarmup("50%"), granule=4, run_length="400 samples")
    whole = PlannedBatches(plan, length, seed=3, rank=world_size - 1, world_size=world_size)
    batches = list(whole)
    running = iter(whole)
    done = min(done, len(batches))
    for _ in range(done):
        next(running)
    resumed = PlannedBatches(plan, length, seed=3, rank=world_size - 1, world_size=world_size)
    resumed.load_state_dict(whole.state_dict() if done else Clock().to_dict())
    assert len(resumed) == len(batches) - done
    assert list(resumed) == list(resumed) == batches[done:]


def test_with_workers_the_schedulers_state_resumes_the_sampler() -> None:
    plan, optimizer = growing(), sgd()
    data = TensorDataset(torch.arange(LENGTH))
    scheduler = torch_scheduler(plan, optimizer)
    batches = PlannedBatches(plan, LENGTH)
    loader = DataLoader(data, batch_sampler=batches, num_workers=2)
    assert len(loader) == plan.total_updates
    seen = []
    for (indices,), (_, planned) in zip(loader, plan.updates(), strict=True):
        assert len(indices) == planned.batch_size
        seen.append(indices.tolist())
        step(optimizer, scheduler)
        if scheduler.clock.updates == 10:
            saved = scheduler.state_dict()
            assert batches.clock.updates > 10
    assert seen == list(batches)
    batches.load_state_dict(saved)
    assert [indices.tolist() for (indices,) in DataLoader(data, batch_sampler=batches, num_workers=2)] == seen[10:]


def test_what_cannot_be_sampled_is_refused() -> None:
    with pytest.raises(PlanError, match="batch of 4 samples, too few for 5 ranks"):
        PlannedBatches(growing(), LENGTH, world_size=5)
    with pytest.raises(PlanError, match="batch of 2 samples"):  # the last takes what remains
        PlannedBatches(Plan(lr=0.1, batch=8, run_length="18 samples"), LENGTH, world_size=4)
    with pytest.raises(PlanError, match=r"0 … 1, found 2"):
        PlannedBatches(growing(), LENGTH, rank=2, world_size=2)
    with pytest.raises(PlanError, match="found 0 and 0"):
        PlannedBatches(growing(), 0)


def test_schedulers_are_imported_without_torch() -> None:
    code = (
        "import sys, gradwire.schedulers as s; assert not {'torch', 'numpy'} & sys.modules.keys();"
        "s.torch_scheduler; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
