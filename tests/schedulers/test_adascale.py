import pytest

from gradwire.schedulers import Clock, Measured, Plan, PlanError, ScheduleError
from gradwire.schedulers.adascale import AdaScale, gain
from gradwire.schedulers.batch import LinearWarmup
from gradwire.schedulers.lr import LinearDecay, StepDecay


def plan(noise: list[Measured] | None = None, batch: int = 128) -> Plan:
    lr = 0.1 * StepDecay(at=["50 updates"], factor=0.1)
    return Plan(lr=lr, batch=batch, run_length="100 updates", scaling=AdaScale(reference=32), noise=noise or ())


def test_gain_at_the_published_formula_s_check_value() -> None:
    """σ² = 3, μ² = 1, S = 4: a noise scale of three reference batches."""
    assert gain(noise_scale=3 * 32, reference=32, batch_size=4 * 32) == pytest.approx(4 / 1.75)


@pytest.mark.parametrize(("noise_scale", "worth"), [(1e-9, 1.0), (1e12, 4.0)])
def test_gain_lies_between_one_and_the_scale(noise_scale: float, worth: float) -> None:
    assert gain(noise_scale, 32, 128) == pytest.approx(worth)


def test_without_a_measurement_every_update_counts_as_one_of_the_reference_run() -> None:
    assert plan().total_updates == 100
    assert [plan().at(Clock(samples=128 * update)).lr for update in (0, 49, 50, 99)] == pytest.approx(
        [0.1, 0.1, 0.01, 0.01]
    )


def test_rate_and_clock_run_ahead_by_the_gain() -> None:
    running = plan([Measured(10 * 128, 96.0)])
    rate = 4 / 1.75
    # 10 updates of gain 1, then 40 more of the reference run are worth 17.5 of these; so are the last 50
    steps = [running.at(Clock(samples=128 * update)).lr for update in (9, 10, 27, 28)]
    assert steps == pytest.approx([0.1, 0.1 * rate, 0.1 * rate, 0.01 * rate])
    assert running.total_updates == 50  # 10 + 90 / rate = 49.375
    assert running.total_samples == 10 * 128 + round(90 / rate * 128)


def test_with_a_gain_of_the_scale_it_is_the_linear_rule_at_equal_samples() -> None:
    running = plan([Measured(0, 1e12)])
    assert running.at(Clock()).lr == pytest.approx(0.4)
    assert running.total_samples == pytest.approx(100 * 32, abs=1)


def test_decisions_follow_only_moves_of_the_rate_above_one_per_cent() -> None:
    running = plan([Measured(1280, 96.0)])
    assert running.decide(Clock(samples=2560), 96.5) is None
    other = running.decide(Clock(samples=2560), 120.0)
    assert other is not None
    assert other.at(Clock(samples=1280)) == running.at(Clock(samples=1280))


def test_many_measurements_add_up() -> None:
    """The clock is the sum of the gains: compare with walking through the run update by update."""
    noise = [Measured(128 * update, 20.0 + 7 * update) for update in range(3, 40, 2)]
    lr = 1.0 * LinearDecay()
    running = Plan(lr=lr, batch=128, run_length="3200 samples", scaling=AdaScale(reference=32), noise=noise)
    reference, worth = Plan(lr=lr, batch=32, run_length="3200 samples"), 0.0
    for clock, step in running.updates():
        measured = [entry.noise_scale for entry in noise if entry.samples <= clock.samples]
        rate = gain(measured[-1], 32, 128) if measured else 1.0
        assert step.lr == pytest.approx(rate * reference.at(Clock(samples=round(worth * 32))).lr, rel=1e-9)
        worth += rate
    assert worth == pytest.approx(100, abs=4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plan(batch=16), "the batch is 16 and the reference 32"),
        (
            lambda: Plan(lr=0.1, batch=64 * LinearWarmup("10%"), run_length="9 updates", scaling=AdaScale(32)),
            "needs one batch size for the whole run; found LinearWarmup",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make: object, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()  # type: ignore[operator]


def test_the_reference_is_a_batch() -> None:
    with pytest.raises(ScheduleError, match="reference batch"):
        AdaScale(reference=0)
