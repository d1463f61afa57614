import pickle

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gradwire.schedulers import Clock, Duration, DurationError, Plan, PlanError, Schedule, Step
from gradwire.schedulers.batch import Constant, LinearWarmup
from gradwire.schedulers.lr import Cosine, LinearDecay, Warmup, WarmupLinearDecay

lengths = st.one_of(
    st.integers(1, 3000).map(lambda n: f"{n} samples"),
    st.integers(1, 20_000).map(lambda n: f"{n} tokens"),
    st.integers(1, 120).map(lambda n: f"{n} updates"),
    st.floats(1, 60).map(lambda n: f"{n} updates"),
    st.floats(0.1, 4).map(lambda n: f"{n} epochs"),
)
pieces = st.one_of(
    st.integers(0, 1000).map(lambda n: f"{n} samples"),
    st.floats(0, 40).map(lambda n: f"{n} updates"),
    st.floats(0, 50).map(lambda n: f"{n}%"),
    st.floats(0, 1).map(lambda n: f"{n} epochs"),
)


@st.composite
def batches(draw: st.DrawFn, granule: int) -> Schedule:
    """One to three batch schedules of sizes that are whole granules, joined."""
    size = st.integers(1, 40).map(lambda n: n * granule)
    kind = st.sampled_from([LinearWarmup, Constant])
    schedule: Schedule = draw(size) * draw(st.one_of(pieces.map(LinearWarmup), st.just(Constant())))
    for _ in range(draw(st.integers(0, 2))):
        schedule = (draw(size) * draw(kind)(draw(pieces))).then(schedule)
    return schedule


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    granule = draw(st.integers(1, 8))
    try:
        return Plan(
            lr=1e-3 * draw(pieces.map(lambda piece: Warmup(piece).then(LinearDecay()))),
            batch=draw(batches(granule)),
            run_length=draw(lengths),
            granule=granule,
            context=draw(st.integers(1, 16)),
            epoch_samples=500,
        )
    except PlanError as error:
        assert "shorten it or lengthen the run" in str(error) or "less than one sample" in str(error)
        assume(False)
        raise


@settings(max_examples=200)
@given(plans())
def test_the_laws_of_a_plan(plan: Plan) -> None:
    granule = plan._horizon.granule
    walked = list(plan.updates())
    sizes = [step.batch_size for _, step in walked]
    assert sum(sizes) == plan.total_samples
    assert len(sizes) == plan.total_updates
    assert max(sizes) == plan.largest_batch
    assert all(size >= granule and size % granule == 0 for size in sizes[:-1])
    assert sizes[-1] >= 1
    for clock, step in walked:
        assert plan.at(clock) == step
        assert plan.at(clock) == plan.at(Clock(clock.samples, 0, clock.updates + 7, 3))  # of the samples alone
        assert plan.to_samples(Duration(clock.updates, "updates")) == clock.samples


def test_a_part_of_an_update_without_a_sample_is_no_update() -> None:
    plan = Plan(lr=1e-3 * Warmup("0 samples").then(LinearDecay()), batch=1, run_length="1.25 updates")
    assert (plan.total_samples, plan.total_updates, len(list(plan.updates()))) == (1, 1, 1)


@settings(max_examples=100)
@given(st.integers(1, 150), st.integers(1, 8), st.data())
def test_a_run_in_updates_has_so_many(updates: int, granule: int, data: st.DataObject) -> None:
    try:
        plan = Plan(
            lr=1.0,
            batch=data.draw(batches(granule)),
            run_length=f"{updates} updates",
            granule=granule,
            epoch_samples=500,
        )
    except PlanError:
        assume(False)
        raise
    steps = [step for _, step in plan.updates()]
    assert len(steps) == plan.total_updates == updates
    assert all(step.batch_size % granule == 0 for step in steps)  # not even the last is cut


def test_step_by_step_in_numbers() -> None:
    plan = Plan(lr=0.3 * Warmup("3 updates").then(LinearDecay()), batch=10, run_length="65 samples", context=4)
    assert [(clock.samples, clock.tokens, clock.updates, step.batch_size) for clock, step in plan.updates()] == [
        (0, 0, 0, 10),
        (10, 40, 1, 10),
        (20, 80, 2, 10),
        (30, 120, 3, 10),
        (40, 160, 4, 10),
        (50, 200, 5, 10),
        (60, 240, 6, 5),
    ]
    rates = [step.lr for _, step in plan.updates()]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.3 * 25 / 35, 0.3 * 15 / 35, 0.3 * 5 / 35])


def test_past_the_end_there_is_nothing_to_do() -> None:
    plan = Plan(lr=0.3 * WarmupLinearDecay(), batch=10, run_length="100 samples")
    assert plan.at(Clock(samples=100)) == Step(batch_size=0, lr=0.0)
    assert plan.at(Clock(samples=120)) == Step(batch_size=0, lr=0.0)
    assert plan.finished(Clock(samples=100))
    assert not plan.finished(Clock(samples=99))
    assert plan.at(Clock(samples=99)).batch_size == 1
    assert list(plan.updates(Clock(samples=100))) == []


def test_a_resumed_run_sees_the_same_updates() -> None:
    plan = Plan(lr=1.0 * WarmupLinearDecay(), batch=64 * LinearWarmup("30%"), run_length="5000 samples")
    walked = list(plan.updates())
    assert list(plan.updates(walked[20][0])) == walked[20:]


def test_skipped_updates_do_not_bend_the_schedule() -> None:
    plan = Plan(lr=1.0 * WarmupLinearDecay(), batch=8, run_length="100 updates")
    assert plan.at(Clock(samples=400, updates=50)) == plan.at(Clock(samples=400, updates=50, skipped=13))


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        ("123 samples", 123),
        ("12_800 tokens", 100),
        ("12_801 tokens", 100),
        ("12_900 tokens", 101),
        ("10 updates", 640),
        ("2.5 updates", 160),
        ("3 epochs", 5391),
        ("0.5 epochs", 898),
        ("10%", 640),
    ],
)
def test_durations_turn_into_whole_samples(text: str, samples: int) -> None:
    plan = Plan(lr=1.0, batch=64, run_length="100 updates", context=128, epoch_samples=1797)
    assert plan.to_samples(text) == samples


@pytest.mark.parametrize(
    ("run_length", "samples", "updates"),
    [
        ("1000 samples", 1000, 16),
        ("128_000 tokens", 1000, 16),
        ("2 epochs", 3594, 57),
        ("100 updates", 6400, 100),
        ("2.5 updates", 160, 3),
    ],
)
def test_a_run_has_a_length_in_any_unit(run_length: str, samples: int, updates: int) -> None:
    plan = Plan(lr=1.0, batch=64, run_length=run_length, context=128, epoch_samples=1797)
    assert (plan.total_samples, plan.total_updates) == (samples, updates)


def test_long_runs_are_counted_without_walking_them() -> None:
    looked = 0

    class Counted(LinearWarmup):
        def value(self, at: object) -> float:
            nonlocal looked
            looked += 1
            return super().value(at)  # type: ignore[arg-type]

    plan = Plan(lr=1.0 * WarmupLinearDecay(), batch=64 * Counted("1%"), run_length="64e8 samples")
    assert plan.total_updates > 100_000_000
    assert plan.largest_batch == 64
    assert looked < 5000
    assert Plan(lr=1.0, batch=64, run_length="1_000_000 updates").total_samples == 64_000_000


def test_a_plan_survives_a_trip_to_a_worker_process() -> None:
    plan = Plan(lr=1e-3 * Warmup("10%").then(Cosine()), batch=64 * LinearWarmup("20 updates"), run_length="100 updates")
    assert list(pickle.loads(pickle.dumps(plan)).updates()) == list(plan.updates())  # noqa: S301 - as DataLoader does


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"batch": 0}, "from 1 on; found 0"),
        ({"batch": 2.5}, "batch of Plan is a whole number or a schedule"),
        ({"batch": 60, "granule": 8}, "the granule 8 does not divide the batch of 60: take 64"),
        ({"batch": 3, "granule": 8}, "the granule 8 does not divide the batch of 3: take 8"),
        ({"batch": LinearWarmup("10%")}, "no size: multiply it, as in 256"),
        ({"lr": Warmup("10%")}, "no peak: multiply it"),
        ({"granule": 0}, "granule is a number from 1 on"),
        ({"context": 0}, "context is a number from 1 on"),
        ({"epoch_samples": 0}, "epoch_samples is a number from 1 on"),
        ({"run_length": "10%"}, "cannot be 10% of itself"),
        ({"run_length": "10 minutes"}, "wall-clock time, which a plan does not know"),
        ({"run_length": "3 epochs"}, "needs the length of an epoch"),
        ({"run_length": "0 samples"}, "less than one sample"),
        ({"run_length": "0 updates"}, "less than one sample or update"),
        ({"run_length": "0.4 samples"}, "less than one sample"),
        ({"lr": 1e-3 * Warmup("2 epochs")}, "needs the length of an epoch"),
        ({"lr": 1e-3 * Warmup("2 hours")}, "wall-clock time"),
        ({"batch": 64 * LinearWarmup("2 epochs")}, "needs the length of an epoch"),
        ({"lr": 1e-3 * Warmup("2000 samples")}, "the run has only 1000 samples"),
    ],
)
def test_what_does_not_fit_together_is_refused_at_once(change: dict[str, object], reason: str) -> None:
    good = {"lr": 1e-3, "batch": 64, "run_length": "1000 samples"}
    with pytest.raises(PlanError, match=reason):
        Plan(**(good | change))  # type: ignore[arg-type]


def test_a_run_length_without_unit_is_refused() -> None:
    with pytest.raises(DurationError, match="500 is not a duration: write '500 updates'"):
        Plan(lr=1e-3, batch=64, run_length=500)  # type: ignore[arg-type]
