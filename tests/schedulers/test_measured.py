import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.schedulers import Clock, Measured, Plan, PlanError, ScheduleError
from gradwire.schedulers.batch import LinearWarmup
from gradwire.schedulers.lr import Cosine
from gradwire.schedulers.measured import NoiseScaleBatch


def plan(noise: list[Measured] | None = None, **arguments: int) -> Plan:
    batch = 256 * NoiseScaleBatch(start=16, hysteresis=1.5)
    return Plan(lr=0.1 * Cosine(), batch=batch, run_length="20_000 samples", granule=8, noise=noise or (), **arguments)


def size_after(plan: Plan, samples: int) -> int:
    return plan.at(Clock(samples=samples)).batch_size


def test_the_batch_follows_the_noise_scale_between_its_bounds() -> None:
    running = plan([Measured(160, 50.0), Measured(800, 10_000.0), Measured(4000, 3.0)])
    assert [size_after(running, samples) for samples in (0, 144, 160, 752, 800, 3872, 4128)] == [
        16, 16, 48, 48, 256, 256, 16
    ]  # fmt: skip
    assert sum(step.batch_size for _, step in running.updates()) == 20_000


def test_small_moves_of_the_noise_scale_change_nothing() -> None:
    running = plan([Measured(160, 64.0)])
    for noise_scale in (44.0, 64.0, 95.0):
        assert running.decide(Clock(samples=1440), noise_scale) is None
    up, down = running.decide(Clock(samples=1440), 97.0), running.decide(Clock(samples=1440), 42.0)
    assert up is not None
    assert down is not None
    assert (size_after(up, 1440), size_after(down, 1440)) == (96, 40)


def test_a_decision_changes_nothing_before_it() -> None:
    before = plan([Measured(160, 64.0)])
    after = before.decide(Clock(samples=1440), 200.0)
    assert after is not None
    for samples in range(0, 1440, 16):
        assert after.at(Clock(samples=samples)) == before.at(Clock(samples=samples))


@given(measured=st.lists(st.floats(0.1, 1e6), max_size=8))
def test_the_log_of_decisions_repeats_the_run(measured: list[float]) -> None:
    """Decisions one after the other, or all at once from the log: the same batches and rates."""
    running, clock, sizes = plan(), Clock(), []
    for noise_scale in measured:
        for _ in range(10):
            step = running.at(clock)
            sizes.append((step.batch_size, step.lr))
            clock = clock.advance(step.batch_size)
        running = running.decide(clock, noise_scale) or running
    resumed = plan(list(running.noise))
    repeated = [(step.batch_size, step.lr) for _, step in resumed.updates()]
    assert repeated[: len(sizes)] == [pair for pair in sizes if pair[0] > 0]
    assert all(16 <= size <= 256 and size % 8 == 0 for size, _ in repeated[:-1])


@pytest.mark.parametrize("noise_scale", [float("nan"), float("inf"), 0.0, -3.0])
def test_what_is_no_noise_scale_decides_nothing(noise_scale: float) -> None:
    assert plan().decide(Clock(samples=160), noise_scale) is None


def test_a_plan_that_measures_nothing_decides_nothing() -> None:
    fixed = Plan(lr=0.1, batch=16, run_length="1000 samples")
    assert not fixed.measures
    assert fixed.decide(Clock(samples=160), 64.0) is None


def test_the_batch_is_measured_after_a_warm_up_too() -> None:
    batch = 256 * LinearWarmup("800 samples").then(NoiseScaleBatch(start=16))
    joined = Plan(lr=0.1, batch=batch, run_length="20_000 samples", granule=8, noise=[Measured(1600, 102.0)])
    assert joined.measures
    assert size_after(joined, 1600) == 104


def test_the_largest_batch_is_what_measuring_may_lead_to() -> None:
    assert plan().largest_batch == 256


def test_a_run_with_measured_batches_has_no_length_in_updates() -> None:
    with pytest.raises(PlanError, match="give its length in samples, tokens or epochs"):
        Plan(lr=0.1, batch=256 * NoiseScaleBatch(start=16), run_length="100 updates")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": 0}, "the start of a measured batch is a whole number of samples from 1 on; found 0"),
        ({"start": 1}, "batches of two samples or more"),
        ({"start": 8, "hysteresis": 1.0}, "hysteresis is a factor above 1"),
        ({"start": 8, "ratio": 0.0}, "a number above 0"),
    ],
)
def test_bad_parameters_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        NoiseScaleBatch(**arguments)  # type: ignore[arg-type]


def test_measurements_are_taken_in_the_order_of_the_run() -> None:
    running = plan([Measured(1600, 64.0)])
    with pytest.raises(PlanError, match="in the order of the run"):
        running.decide(Clock(samples=160), 200.0)
