import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.schedulers import Clock, Coupled, Plan, PlanError, ScheduleError
from gradwire.schedulers.coupling import CriticalBatchWarmup, GrowInsteadOfDecay, Seesaw
from gradwire.schedulers.lr import Cosine, LinearDecay, QuarterCosine, StepDecay, Warmup
from gradwire.schedulers.scaling import Linear, SquareRoot

CUTS = StepDecay(at=["4000 samples", "8000 samples", "12_000 samples"], factor=0.25)


def plan(batch: Coupled, lr: object = 0.8 * CUTS, **arguments: object) -> Plan:
    return Plan(lr=lr, batch=batch, run_length="16_000 samples", **arguments)  # type: ignore[arg-type]


def seen(plan: Plan, *places: int) -> list[tuple[int, float]]:
    steps = [plan.at(Clock(samples=place)) for place in places]
    return [(step.batch_size, round(step.lr, 9)) for step in steps]


def test_smith_multiplies_the_batch_by_what_the_rate_would_have_been_divided_by() -> None:
    grown = plan(320 * GrowInsteadOfDecay(start=20, factor=4))
    assert seen(grown, 0, 3980, 4000, 7980, 8160) == [(20, 0.8), (20, 0.8), (80, 0.8), (80, 0.8), (320, 0.8)]


def test_smith_s_noise_scale_stays_what_the_schedule_would_have_made_it() -> None:
    """η·N/(B·(1−m)) with N and m constant: η/B of the grown run is that of the run whose rate decays."""
    grown = plan(320 * GrowInsteadOfDecay(start=20, factor=4))
    decayed = Plan(lr=0.8 * CUTS, batch=20, run_length="16_000 samples")
    for clock, step in grown.updates():
        if step.batch_size in (20, 80, 320):  # not the last, which takes what remains
            same = decayed.at(clock)
            assert step.lr / step.batch_size == pytest.approx(same.lr / same.batch_size)


def test_a_full_batch_lets_the_rate_fall_again() -> None:
    """At 12,000 samples the batch is full already: the rate falls by what the batch can no longer grow by."""
    assert seen(plan(320 * GrowInsteadOfDecay(start=20, factor=4)), 12_000) == [(320, 0.2)]
    assert seen(plan(160 * GrowInsteadOfDecay(start=20, factor=4)), 8160) == [(160, 0.4)]


def test_seesaw_divides_the_rate_by_the_root() -> None:
    steps = seen(plan(320 * Seesaw(start=20, factor=4)), 0, 4000, 8160, 12_000)
    assert steps == [(20, 0.8), (80, 0.4), (320, 0.2), (320, 0.05)]


def test_seesaw_spares_up_to_1_minus_2_over_pi_of_the_updates_of_a_quarter_cosine() -> None:
    arguments = {"lr": 1.0 * QuarterCosine(), "run_length": "6_400_000 samples"}
    constant = Plan(batch=64, **arguments)  # type: ignore[arg-type]
    spared = 1 - Plan(batch=10_000 * Seesaw(start=64, factor=1.005), **arguments).total_updates / constant.total_updates  # type: ignore[arg-type]
    assert spared == pytest.approx(1 - 2 / math.pi, abs=0.005)
    assert spared < 1 - 2 / math.pi


def test_while_the_rate_warms_up_the_batch_waits() -> None:
    warmed = plan(80 * Seesaw(start=20), 0.8 * Warmup("4000 samples").then(LinearDecay()))
    assert seen(warmed, 0, 1980, 3980) == [(20, 0.004), (20, 0.4), (20, 0.8)]


@given(factor=st.floats(1.1, 8), doublings=st.integers(1, 5), rule=st.sampled_from([Seesaw, GrowInsteadOfDecay]))
def test_the_batch_only_grows_and_ends_full_and_the_rate_never_passes_the_schedule_s_peak(
    factor: float, doublings: int, rule: type[GrowInsteadOfDecay]
) -> None:
    full = 8 * 2**doublings
    steps = [step for _, step in plan(full * rule(start=8, factor=factor), 0.3 * Cosine(), granule=8).updates()]
    sizes = [step.batch_size for step in steps]
    assert sizes[:-1] == sorted(sizes[:-1])
    assert max(sizes) == full
    assert sizes[0] == 8
    assert sum(sizes) == 16_000
    # whole granules let the batch, and with it the rate, be up to half a granule too large
    assert all(0 < step.lr <= 0.3 * (8 + 4) / 8 for step in steps)


def test_critical_batch_warmup_doubles_the_batch_and_raises_the_rate_by_its_root() -> None:
    rule = CriticalBatchWarmup(start=1024, thresholds=["100_000 samples", "50%"])
    grown = Plan(lr=0.1, batch=4096 * rule, run_length="1_000_000 samples")
    assert seen(grown, 0, 99_328, 100_352, 500_736) == [
        (1024, 0.1),
        (1024, 0.1),
        (2048, round(0.1 * math.sqrt(2), 9)),
        (4096, 0.2),
    ]


def test_critical_batch_warmup_doubles_when_the_measured_critical_batch_exceeds_twice_the_batch() -> None:
    running = Plan(lr=0.1, batch=4096 * CriticalBatchWarmup(start=1024), run_length="1_000_000 samples")
    assert running.measures
    assert running.decide(Clock(samples=10_240), 2048.0) is None
    doubled = running.decide(Clock(samples=10_240), 2049.0)
    assert doubled is not None
    assert seen(doubled, 9216, 10_240) == [(1024, 0.1), (2048, round(0.1 * math.sqrt(2), 9))]
    assert doubled.decide(Clock(samples=20_480), 4000.0) is None
    full = doubled.decide(Clock(samples=20_480), 1e6)
    assert full is not None
    assert seen(full, 20_480) == [(4096, 0.2)]
    assert full.decide(Clock(samples=30_720), 1e9) is None


@pytest.mark.parametrize("scaling", [Linear(), SquareRoot()])
def test_a_coupling_and_a_scaling_rule_contradict_each_other(scaling: Linear | SquareRoot) -> None:
    with pytest.raises(PlanError, match=r"Seesaw plans the learning rate .* take one of the two"):
        plan(320 * Seesaw(start=20), scaling=scaling)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plan(512 * Seesaw(start=64), 0.1), "Seesaw trades the decay .* and this rate never decays"),
        (lambda: plan(512 * Seesaw(start=64), 0.1 * Cosine(floor=0.4)), "only reaches 128"),
        (lambda: plan(32 * Seesaw(start=64)), r"the start of the batch, 64 samples, is above the full batch of 32"),
        (lambda: plan(512 * Seesaw(start=60), granule=8), "granule 8 does not divide the start of the batch, 60"),
        (
            lambda: plan(100 * CriticalBatchWarmup(start=8, thresholds=["10%"])),
            "never is 100: take .* 128",
        ),
        (
            lambda: plan(32 * CriticalBatchWarmup(start=8, thresholds=["10%"])),
            "each of the 2 times .*; found 1",
        ),
        (lambda: plan(32 * CriticalBatchWarmup(start=8, thresholds=["20%", "10%"])), "thresholds rise from above 0"),
        (
            lambda: plan(16 * CriticalBatchWarmup(start=8, thresholds=["20_000 samples"])),
            r"the last of the thresholds is 20000 samples, but the run has only 16000 samples",
        ),
        (lambda: plan(0 * Seesaw(start=64)), "whole number of samples from 1 on; found 0"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_start(make: object, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("start", [0, -4, 2.5, True])
def test_a_first_batch_is_a_whole_number_from_1_on(start: float) -> None:
    with pytest.raises(ScheduleError, match=r"start of (a growing batch|Seesaw) is a whole number"):
        Seesaw(start=start)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [1.0, 0.5, math.inf, math.nan])
def test_stairs_grow(factor: float) -> None:
    with pytest.raises(ScheduleError, match=r"a number above 1|a finite number"):
        GrowInsteadOfDecay(start=8, factor=factor)
