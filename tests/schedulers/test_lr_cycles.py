import math
import warnings

import pytest
import torch

from gradwire.schedulers import Clock, Plan, PlanError, Progress, Schedule, ScheduleError
from gradwire.schedulers.lr import OneCycle, Warmup, WarmupStableDecay
from gradwire.schedulers.lr.cycles import Shape


def factors(schedule: Schedule, updates: int) -> list[float]:
    """The factor of every update of a run with batches of 4, and of the point after the last."""
    total = 4 * updates
    horizon = Plan(lr=1.0, batch=4, run_length=f"{total} samples")._horizon
    return [schedule.value(Progress(4 * s, min(4 * s + 4, total), total, horizon)) for s in range(updates + 1)]


def decays(schedule: Schedule, updates: int) -> list[float]:
    total = 4 * updates
    horizon = Plan(lr=1.0, batch=4, run_length=f"{total} samples")._horizon
    return [schedule.decay(Progress(4 * s, min(4 * s + 4, total), total, horizon)) for s in range(updates + 1)]


def test_one_cycle_at_three_points_of_its_rise_and_of_its_fall() -> None:
    values = factors(OneCycle(rise="30%", start=0.1, floor=0.01), 400)
    assert [values[39], values[59], values[119]] == pytest.approx([0.1 + 0.9 * 0.25, 0.55, 1])
    assert [values[120], values[260], values[400]] == pytest.approx([1, 0.505, 0.01])
    assert values[120 + 280 * 2 // 3 + 1] < 0.01 + 0.99 * 0.25 < values[120 + 280 * 2 // 3]


def test_one_cycle_is_torchs_to_a_part_of_an_update() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    torchs = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=1000, cycle_momentum=False)
    theirs = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(1000):
            theirs.append(optimizer.param_groups[0]["lr"])
            torchs.step()
    ours = factors(OneCycle(), 1000)[:1000]
    assert ours.index(max(ours)) == theirs.index(max(theirs)) == 299
    steepest = math.pi / 2 / 300
    assert max(abs(our - their) for our, their in zip(ours, theirs, strict=True)) <= steepest


def test_one_cycle_has_not_decayed_before_its_peak() -> None:
    schedule = OneCycle(rise="30%", start=0.1, floor=0.01)
    assert decays(schedule, 400)[:120] == [1] * 120
    assert decays(schedule, 400)[120:] == factors(schedule, 400)[120:]


@pytest.mark.parametrize("rise", ["0%", "100%"])
def test_one_cycle_may_rise_never_or_always(rise: str) -> None:
    values = factors(OneCycle(rise, start=0.2, floor=0.1), 50)
    assert (values[0], values[50]) == ((1, 0.1) if rise == "0%" else (pytest.approx(0.2, abs=2e-3), 0.1))
    assert values[49] == (1 if rise == "100%" else pytest.approx(0.1, abs=2e-3))


@pytest.mark.parametrize(
    "shape, halfway, three_quarters",
    [("linear", 0.5, 0.25), ("sqrt", 1 - math.sqrt(0.5), 1 - math.sqrt(0.75)), ("cosine", 0.5, 0.5 - math.sqrt(0.125))],
)
@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_warmup_stable_decay_in_its_three_shapes(
    shape: Shape, halfway: float, three_quarters: float, floor: float
) -> None:
    values = factors(WarmupStableDecay("100 updates", "200 updates", shape, floor), 1000)
    assert values[:100] == pytest.approx([(s + 1) / 100 for s in range(100)])
    assert values[100:801] == [1] * 701
    expected = [floor + (1 - floor) * share for share in (halfway, three_quarters, 0)]
    assert [values[900], values[950], values[1000]] == pytest.approx(expected)
    assert values[999] > values[1000]


@pytest.mark.parametrize("shape", ["linear", "sqrt", "cosine"])
@pytest.mark.parametrize("unit", ["updates", "samples"])
def test_a_run_restarts_from_any_stable_point(shape: Shape, unit: str) -> None:
    per = 1 if unit == "updates" else 8

    def plan(updates: int) -> Plan:
        schedule = WarmupStableDecay(f"{20 * per} {unit}", f"{30 * per} {unit}", shape)
        return Plan(lr=3e-4 * schedule, batch=8, run_length=f"{updates} updates")

    short, long = plan(100), plan(250)
    stable = [Clock(samples=8 * update, updates=update) for update in range(71)]
    assert [short.at(clock) for clock in stable] == [long.at(clock) for clock in stable]
    assert short.at(stable[-1]).lr == 3e-4
    fall = [short.at(Clock(samples=8 * update)).lr for update in range(70, 100)]
    assert [long.at(Clock(samples=8 * update)).lr for update in range(70, 220)] == [3e-4] * 150
    assert [long.at(Clock(samples=8 * update)).lr for update in range(220, 250)] == fall


def test_a_fall_in_updates_is_the_last_so_many_whatever_the_batches_are() -> None:
    from gradwire.schedulers.batch import LinearWarmup

    plan = Plan(
        lr=1.0 * WarmupStableDecay("5 updates", "10 updates", "linear"),
        batch=64 * LinearWarmup("50%"),
        run_length="10_000 samples",
    )
    rates = [step.lr for _, step in plan.updates()]
    assert rates[4:-10] == pytest.approx([1] * (len(rates) - 14))
    assert rates[-11] == 1 > rates[-9]


def test_warmup_stable_decay_has_not_decayed_before_its_fall() -> None:
    schedule = WarmupStableDecay("100 updates", "200 updates")
    assert decays(schedule, 1000)[:801] == [1] * 801
    assert decays(schedule, 1000)[801:] == factors(schedule, 1000)[801:]


def test_a_cycle_can_follow_another_schedule() -> None:
    values = factors(Warmup("50%").then(WarmupStableDecay("0%", "25%", "linear")), 100)
    assert values[49:76] == [1] * 27
    assert [values[76], values[100]] == pytest.approx([24 / 25, 0])


def test_schedules_with_equal_parts_are_equal() -> None:
    assert WarmupStableDecay("10%", "20%") == WarmupStableDecay("10 %", "20 %")
    assert WarmupStableDecay("10%", "20%") != WarmupStableDecay("10%", "21%")
    assert hash(OneCycle()) == hash(OneCycle("30%"))


def test_what_no_cycle_can_be_is_refused() -> None:
    with pytest.raises(ScheduleError, match="start of a cycle is a share of the peak"):
        OneCycle(start=1.5)
    with pytest.raises(ScheduleError, match="floor of a warmup-stable-decay schedule is a share of the peak"):
        WarmupStableDecay(floor=-0.1)
    with pytest.raises(
        ScheduleError, match="shape of WarmupStableDecay is one of 'linear', 'sqrt', 'cosine'; found 'exponential'"
    ):
        WarmupStableDecay(shape="exponential")  # type: ignore[arg-type]


def test_a_run_too_short_for_a_cycle_is_refused() -> None:
    with pytest.raises(PlanError, match=r"rises for 20 updates \(80 samples\), but the run has only 40 samples"):
        Plan(lr=1.0 * OneCycle("20 updates"), batch=4, run_length="10 updates")
    with pytest.raises(PlanError, match=r"decay of 6 updates \(24 samples\) do not fit together, .* only 40 samples"):
        Plan(lr=1.0 * WarmupStableDecay("5 updates", "6 updates"), batch=4, run_length="10 updates")
    Plan(lr=1.0 * WarmupStableDecay("5 updates", "5 updates"), batch=4, run_length="10 updates")
