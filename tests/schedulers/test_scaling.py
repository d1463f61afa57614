import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.schedulers import Duration, Horizon, Plan, PlanError, Progress, Schedule, ScheduleError
from gradwire.schedulers.batch import LinearWarmup
from gradwire.schedulers.lr import LinearDecay
from gradwire.schedulers.scaling import Betas, Linear, NoScaling, Scaled, Scaling, SquareRoot
from gradwire.schedulers.sizes import Sizes


def test_no_scaling_changes_nothing() -> None:
    assert NoScaling().apply(0.1, 8192, (0.9, 0.999), 1e-8) == Scaled(0.1, (0.9, 0.999), 1e-8)


def test_linear_scaling_of_0_point_1_at_256_is_3_point_2_at_8192() -> None:
    scaled = Linear(reference=256).apply(0.1, 8192, (0.9, 0.999), 1e-8)
    assert scaled.lr == pytest.approx(3.2, rel=1e-15)
    assert (scaled.betas, scaled.eps) == ((0.9, 0.999), 1e-8)


def test_square_root_scaling_at_kappa_4_doubles_the_rate_and_gives_betas_0_point_6_and_0_point_996() -> None:
    scaled = SquareRoot(reference=64, adapt_betas=True).apply(1e-3, 256, (0.9, 0.999), 1e-8)
    assert scaled.lr == 2e-3
    assert scaled.betas == pytest.approx((0.6, 0.996), rel=1e-12)
    assert scaled.eps == pytest.approx(5e-9)


def test_square_root_scaling_leaves_betas_unless_told() -> None:
    scaled = SquareRoot(reference=64).apply(1e-3, 6400, (0.9, 0.999), 1e-8)
    assert scaled.lr == pytest.approx(1e-2)
    assert (scaled.betas, scaled.eps) == ((0.9, 0.999), 1e-8)


def test_kappa_over_10_is_refused_at_beta_0_point_9() -> None:
    rule = SquareRoot(reference=10, adapt_betas=True)
    assert rule.apply(1e-3, 100, (0.9, 0.999)).betas == pytest.approx((0.0, 0.99), abs=1e-12)
    with pytest.raises(PlanError, match=r"turns beta 0.9 into -0.01 at κ = 10.1 .* valid up to κ = 10"):
        rule.apply(1e-3, 101, (0.9, 0.999))


def test_a_plan_refuses_a_kappa_that_only_comes_later_in_the_run() -> None:
    with pytest.raises(PlanError, match="κ = 16"):
        Plan(
            lr=1e-3,
            batch=256 * LinearWarmup("50%"),
            scaling=SquareRoot(reference=16, adapt_betas=True),
            run_length="10_000 samples",
            betas=(0.9, 0.999),
        )


def test_adapting_betas_needs_betas() -> None:
    with pytest.raises(PlanError, match="the plan has none"):
        Plan(lr=1e-3, batch=64, scaling=SquareRoot(16, adapt_betas=True), run_length="10 updates")


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(1e-8, 10))
def test_rules_leave_the_rate_at_the_reference_batch(reference: int, batch: int, lr: float) -> None:
    assert Linear(reference).apply(lr, reference).lr == pytest.approx(lr, rel=1e-15)
    assert SquareRoot(reference).apply(lr, reference).lr == lr
    assert Linear(reference).apply(lr, batch).lr == pytest.approx(lr * batch / reference)
    assert SquareRoot(reference).apply(lr, batch).lr == pytest.approx(lr * math.sqrt(batch / reference))


@pytest.mark.parametrize("rule", [Linear(), SquareRoot()])
def test_an_open_reference_is_the_full_batch(rule: Linear | SquareRoot) -> None:
    plan = Plan(lr=0.5, batch=64 * LinearWarmup("50%"), scaling=rule, run_length="10_000 samples")
    steps = [step for _, step in plan.updates()]
    assert steps[-2].batch_size == 64
    assert steps[-2].lr == 0.5
    assert steps[0].lr == pytest.approx(0.5 / 64 if isinstance(rule, Linear) else 0.5 / 8)
    with pytest.raises(PlanError, match="no reference batch"):
        rule.apply(0.5, 64)


@pytest.mark.parametrize("rule", [Linear, SquareRoot])
def test_a_reference_below_one_is_refused(rule: type[Linear] | type[SquareRoot]) -> None:
    with pytest.raises(ScheduleError, match="from 1 on; found 0"):
        rule(0)


def test_a_rule_with_its_own_clock_reads_the_schedule_at_another_place() -> None:
    class HalfSpeed(Schedule):
        def __init__(self, inner: Schedule) -> None:
            self.inner = inner

        def value(self, at: Progress) -> float:
            return self.inner.value(Progress(at.start // 2, at.end // 2, at.total, at.horizon))

    class Slow(Scaling):
        def apply(self, lr: float, batch_size: int, betas: Betas | None = None, eps: float | None = None) -> Scaled:
            return Scaled(lr, betas, eps)

        def follow(
            self, batch: Schedule, run_length: Duration, horizon: Horizon, lr: Schedule
        ) -> tuple[Sizes, Schedule]:
            sizes, lr = super().follow(batch, run_length, horizon, lr)
            return sizes, HalfSpeed(lr)

    plan = Plan(lr=1.0 * LinearDecay(), batch=10, scaling=Slow(), run_length="10 updates")
    assert [step.lr for _, step in plan.updates()] == pytest.approx([1 - n / 20 for n in range(10)])
