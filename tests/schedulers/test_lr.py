import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.schedulers import Horizon, Plan, PlanError, Progress, Schedule, ScheduleError
from gradwire.schedulers.lr import (
    Constant,
    Cosine,
    LinearDecay,
    Warmup,
    WarmupConstant,
    WarmupCosine,
    WarmupLinearDecay,
)
from gradwire.schedulers.scaling import Linear


def factors(schedule: Schedule, updates: int) -> list[float]:
    """The factor of every update of a run with batches of 4, and of the point after the last."""
    total = 4 * updates
    horizon = Plan(lr=1.0, batch=4, run_length=f"{total} samples")._horizon
    return [schedule.value(Progress(4 * s, min(4 * s + 4, total), total, horizon)) for s in range(updates + 1)]


def test_warmup_is_s_plus_1_over_w() -> None:
    assert factors(Warmup("5 updates"), 8) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1])


def test_warmup_can_start_above_zero() -> None:
    assert factors(Warmup("4 updates", start=0.2), 5) == pytest.approx([0.4, 0.6, 0.8, 1, 1, 1])


def test_linear_decay_is_t_minus_s_over_t() -> None:
    assert factors(LinearDecay(), 4) == [1, 0.75, 0.5, 0.25, 0]
    assert factors(LinearDecay(floor=0.2), 4) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


def test_linear_warmup_and_decay_to_zero_has_a_last_update_above_zero_and_zero_after_it() -> None:
    values = factors(WarmupLinearDecay("10 updates"), 100)
    assert values[:10] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert values[10:] == pytest.approx([(100 - s) / 90 for s in range(10, 101)])
    assert values[99] == pytest.approx(1 / 90)
    assert values[100] == 0


def test_cosine_at_three_points() -> None:
    values = factors(Cosine(), 300)
    assert values[0] == 1
    assert values[100] == pytest.approx((1 + math.cos(math.pi / 3)) / 2) == pytest.approx(0.75)
    assert values[150] == pytest.approx(0.5)
    assert values[299] > 0
    assert values[300] == pytest.approx(0)


def test_cosine_with_a_floor_at_three_points() -> None:
    values = factors(WarmupCosine("100 updates", floor=0.1), 400)
    assert values[49] == pytest.approx(0.5)
    assert values[100] == 1
    assert values[250] == pytest.approx(0.55)
    assert values[400] == pytest.approx(0.1)


def test_warmup_then_constant_holds_the_peak() -> None:
    assert factors(WarmupConstant("2 updates"), 4) == [0.5, 1, 1, 1, 1]


def test_constant_is_the_peak_throughout() -> None:
    assert factors(Constant(), 3) == [1, 1, 1, 1]


@pytest.mark.parametrize("named", [WarmupLinearDecay, WarmupCosine, WarmupConstant])
def test_no_warmup_begins_at_the_peak(named: type[WarmupLinearDecay]) -> None:
    assert factors(named(warmup="0%"), 10)[0] == 1


def test_goyals_warmup_rises_each_update_from_the_reference_rate_to_3_point_2_in_782_updates() -> None:
    plan = Plan(
        lr=0.1 * Warmup("5 epochs", start=256 / 8192).then(Constant()),
        batch=8192,
        scaling=Linear(reference=256),
        run_length="6 epochs",
        epoch_samples=1_281_167,
    )
    rates = [step.lr for _, step in plan.updates()]
    rise = 3.1 * 8192 / (5 * 1_281_167)
    assert rates[0] == pytest.approx(0.1 + rise)
    assert rates[390] == pytest.approx(0.1 + 391 * rise)
    assert rates[780] < 3.2
    assert rates[781] == pytest.approx(3.2)
    assert rates[781:-1] == pytest.approx([3.2] * (len(rates) - 782))
    assert rates[-1] == pytest.approx(3.2 * (6 * 1_281_167 % 8192) / 8192)  # the remainder is scaled as what it is


@given(st.integers(0, 1000), st.integers(1, 1000), st.floats(0, 1), st.sampled_from([LinearDecay, Cosine]))
def test_joins_are_continuous(warmup: int, decay: int, floor: float, kind: type[LinearDecay]) -> None:
    total = warmup + decay
    schedule, horizon = Warmup(f"{warmup} samples").then(kind(floor)), Horizon(total)
    values = [schedule.value(Progress(s, s, total, horizon)) for s in range(total + 1)]
    steps = [abs(after - before) for before, after in itertools.pairwise(values)]
    assert max(steps, default=0) <= max(1 / max(warmup, 1), math.pi / 2 / decay) + 1e-12
    assert all(0 <= value <= 1 for value in values)


@given(st.integers(0, 50), st.integers(51, 500), st.integers(1, 64), st.booleans())
def test_every_update_of_a_run_has_a_rate_above_zero(warmup: int, updates: int, batch: int, cosine: bool) -> None:
    decay = Cosine() if cosine else LinearDecay()
    plan = Plan(lr=1e-3 * Warmup(f"{warmup} updates").then(decay), batch=batch, run_length=f"{updates} updates")
    assert all(step.lr > 0 for _, step in plan.updates())


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20), st.floats(0, 1))
def test_warmups_and_linear_decays_are_monotone_to_the_last_bit(places: list[int], number: float) -> None:
    for schedule, sign in ((Warmup("777 samples", start=number), 1), (LinearDecay(floor=number), -1)):
        values = [schedule.value(Progress(s, s, 1000, Horizon(1000))) for s in sorted(places)]
        assert values == sorted(values, reverse=sign < 0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Warmup("10%", start=-0.1),
        lambda: LinearDecay(floor=1.5),
        lambda: Cosine(floor=1.1),
        lambda: WarmupCosine(floor=2),
    ],
)
def test_a_factor_outside_0_to_1_is_refused(wrong: object) -> None:
    with pytest.raises(ScheduleError, match="a share of the peak, between 0 and 1"):
        wrong()  # type: ignore[operator]


def test_a_horizon_shorter_than_the_warmup_is_refused() -> None:
    with pytest.raises(
        PlanError, match=r"Warmup takes 500 updates \(32000 samples\), but the run has only 6400 samples"
    ):
        Plan(lr=1e-3 * WarmupLinearDecay("500 updates"), batch=64, run_length="100 updates")
