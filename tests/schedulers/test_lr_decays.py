import itertools
import math
from collections.abc import Callable

import pytest

from gradwire.schedulers import Plan, PlanError, Progress, Schedule, ScheduleError
from gradwire.schedulers.lr import (
    Constant,
    Cosine,
    InverseSquareRoot,
    LinearDecay,
    Polynomial,
    QuarterCosine,
    StepDecay,
    Warmup,
    WarmupCosine,
    WarmupInverseSquareRoot,
)


def factors(schedule: Schedule, updates: int) -> list[float]:
    """The factor of every update of a run with batches of 4, and of the point after the last."""
    total = 4 * updates
    horizon = Plan(lr=1.0, batch=4, run_length=f"{total} samples")._horizon
    return [schedule.value(Progress(4 * s, min(4 * s + 4, total), total, horizon)) for s in range(updates + 1)]


def rates(schedule: Schedule, updates: int) -> list[float]:
    plan = Plan(lr=1.0 * schedule, batch=4, run_length=f"{updates} updates")
    return [step.lr for _, step in plan.updates()]


def test_inverse_square_root_is_root_of_w_over_w_plus_s() -> None:
    values = factors(InverseSquareRoot("100 updates"), 800)
    assert [values[0], values[300], values[800]] == pytest.approx([1, 1 / 2, 1 / 3])


def test_inverse_square_root_after_its_warmup_is_root_of_w_over_all_samples() -> None:
    values = factors(WarmupInverseSquareRoot("100 updates"), 900)
    assert values[:100] == pytest.approx([(s + 1) / 100 for s in range(100)])
    assert values[100:] == pytest.approx([math.sqrt(100 / s) for s in range(100, 901)])
    assert [values[99], values[100], values[400], values[900]] == pytest.approx([1, 1, 1 / 2, 1 / 3])


def test_polynomial_is_a_power_of_what_is_left() -> None:
    values = factors(Polynomial(power=2), 100)
    assert [values[0], values[50], values[90], values[100]] == pytest.approx([1, 0.25, 0.01, 0])
    with_floor = factors(Polynomial(power=0.9, floor=0.2), 100)
    assert [with_floor[0], with_floor[75], with_floor[100]] == pytest.approx([1, 0.2 + 0.8 * 0.25**0.9, 0.2])


def test_a_polynomial_of_power_1_is_the_linear_decay() -> None:
    assert factors(Polynomial(power=1, floor=0.3), 57) == factors(LinearDecay(floor=0.3), 57)


def test_quarter_cosine_at_three_points() -> None:
    values = factors(QuarterCosine(), 300)
    assert [values[0], values[100], values[200], values[300]] == pytest.approx([1, math.sqrt(3) / 2, 0.5, 0])
    assert values[300] == 0
    assert factors(QuarterCosine(floor=0.1), 300)[200] == pytest.approx(0.1 + 0.9 * 0.5)


def test_the_mean_of_a_quarter_cosine_is_2_over_pi() -> None:
    values = factors(QuarterCosine(), 100_000)
    assert sum(values) / len(values) == pytest.approx(2 / math.pi, abs=1e-4)


def test_steps_fall_at_their_places() -> None:
    assert factors(StepDecay(at=["2 updates", "5 updates"], factor=0.5), 7) == [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]


def test_goyals_steps_are_a_tenth_at_epochs_30_60_and_80_of_90() -> None:
    plan = Plan(
        lr=3.2 * Warmup("5 epochs").then(StepDecay(at=["25 epochs", "55 epochs", "75 epochs"])),
        batch=8192,
        run_length="90 epochs",
        epoch_samples=1_281_167,
    )
    seen = {clock.samples / 1_281_167: step.lr for clock, step in plan.updates()}
    after_warmup = {place: rate for place, rate in seen.items() if place >= 5}
    assert sorted(set(after_warmup.values())) == pytest.approx([0.0032, 0.032, 0.32, 3.2])
    for rate, (first, last) in zip((3.2, 0.32, 0.032, 0.0032), itertools.pairwise((5, 30, 60, 80, 90)), strict=True):
        assert sorted({seen[place] for place in after_warmup if first <= place < last}) == pytest.approx([rate])


@pytest.mark.parametrize("kind", [LinearDecay, Cosine, QuarterCosine, Polynomial])
def test_a_fall_with_a_length_takes_it_and_stays_at_its_floor(kind: Callable[..., Schedule]) -> None:
    short = factors(kind(floor=0.25, length="40 updates"), 100)
    assert short[:41] == factors(kind(floor=0.25), 40)
    assert short[40:] == [0.25] * 61


@pytest.mark.parametrize("kind", [LinearDecay, Cosine, QuarterCosine, Polynomial])
def test_a_fall_with_a_length_can_be_followed(kind: Callable[..., Schedule]) -> None:
    joined = (
        (1.0 * kind(floor=0.25, length="40 updates")).then(0.25 * Constant("10 updates")).then(0.25 * LinearDecay())
    )
    values = factors(joined, 100)
    assert values[:40] == factors(kind(floor=0.25), 40)[:40]
    assert values[40:51] == [0.25] * 11
    assert values[75] == pytest.approx(0.125)


@pytest.mark.parametrize("kind", [LinearDecay, Cosine, QuarterCosine, Polynomial])
def test_a_fall_longer_than_what_is_left_is_refused(kind: Callable[..., Schedule]) -> None:
    with pytest.raises(PlanError, match=r"takes 60% \(240 samples\), but only 200 samples of the run are left"):
        rates(Warmup("50%").then(kind(length="60%")), 100)
    assert len(rates(Warmup("50%").then(kind(length="50%")), 100)) == 100


def test_gpt3_is_a_warmup_a_cosine_to_a_tenth_at_260e9_tokens_and_then_constant() -> None:
    plan = Plan(
        lr=0.6e-4 * WarmupCosine("375e6 tokens", floor=0.1, length="259.625e9 tokens"),
        batch=1563,
        context=2048,
        run_length="300e9 tokens",
    )

    def rate(tokens: float) -> float:
        samples = plan.to_samples(f"{tokens} tokens")
        return plan._lr.value(Progress(samples, samples, plan.total_samples, plan._horizon)) / 0.6e-4

    assert rate(375e6 / 2) == pytest.approx(0.5, rel=1e-5)
    assert rate(375e6) == pytest.approx(1)
    assert rate(375e6 + 259.625e9 / 2) == pytest.approx(0.55)
    assert [rate(259.9e9), rate(260e9), rate(299e9)] == pytest.approx([0.1, 0.1, 0.1], rel=1e-4)


def test_what_a_rate_has_decayed_to_is_1_while_it_rises() -> None:
    schedule = 3e-4 * Warmup("10 samples").then(LinearDecay())
    horizon = Plan(lr=1.0, batch=1, run_length="110 samples")._horizon
    decays = [schedule.decay(Progress(s, s + 1, 110, horizon)) for s in (0, 5, 9, 10, 60, 85)]
    assert decays == pytest.approx([1, 1, 1, 1, 0.5, 0.25])


def test_a_second_piece_with_a_lower_peak_has_decayed_from_the_first() -> None:
    schedule = (8e-4 * Constant("50 samples")).then(2e-4 * LinearDecay())
    rising = (2e-4 * Constant("50 samples")).then(8e-4 * LinearDecay())
    horizon = Plan(lr=1.0, batch=1, run_length="100 samples")._horizon
    places = [Progress(s, s + 1, 100, horizon) for s in (0, 49, 50, 75)]
    assert [schedule.decay(at) for at in places] == pytest.approx([1, 1, 0.25, 0.125])
    assert [rising.decay(at) for at in places] == pytest.approx([1, 1, 1, 0.5])
    assert [(0.0 * Constant("50%")).then(0.0 * LinearDecay()).decay(at) for at in places] == [1, 1, 1, 0.5]


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: Polynomial(power=0), "power of a polynomial decay is a number above 0; found 0"),
        (lambda: Polynomial(power=math.inf), "power of Polynomial is a finite number; found inf"),
        (lambda: Polynomial(floor=-1), "floor of a polynomial decay is a share of the peak"),
        (lambda: QuarterCosine(floor=2), "floor of a quarter cosine is a share of the peak"),
        (lambda: InverseSquareRoot("0 updates"), "the length of its warm-up, above 0; found 0 updates"),
        (lambda: WarmupInverseSquareRoot("0%"), "the length of its warm-up, above 0; found 0%"),
        (lambda: StepDecay(at=[]), r"falls at a list of places, as in .* found \[\]"),
        (lambda: StepDecay(at="50%"), "at of StepDecay is a list, each a duration .* found '50%'"),
        (lambda: StepDecay(at=["0%", "50%"]), "rise strictly from above 0; found 0% after 0%: sort them"),
        (lambda: StepDecay(at=["5 epochs", "3 epochs"]), "found 3 epochs after 5 epochs: sort them"),
        (lambda: StepDecay(at=["3 epochs", "3 epochs"]), "found 3 epochs after 3 epochs: sort them"),
        (lambda: StepDecay(at=["50%"], factor=1.0), "factor of a step decay lies between 0 and 1; found 1.0"),
        (lambda: StepDecay(at=["50%"], factor=math.nan), "factor of StepDecay is a finite number; found nan"),
        (lambda: StepDecay(at=[30, 60]), "30 is not a duration: write '30 updates'"),  # type: ignore[list-item]
        (lambda: Cosine(length="1 step"), "did you mean '1 updates'"),
    ],
)
def test_what_no_decay_can_be_is_refused(wrong: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        wrong()
    assert isinstance(refused.value, ScheduleError) or "duration" in message or "did you mean" in message


def test_steps_that_do_not_fit_into_the_run_are_refused() -> None:
    with pytest.raises(PlanError, match="rise strictly from above 0; found 10 updates after 50%"):
        rates(StepDecay(at=["50%", "10 updates"]), 100)
    with pytest.raises(PlanError, match=r"falls at 100 updates \(400 samples\), but the run has only 400 samples"):
        rates(StepDecay(at=["50%", "100 updates"]), 100)
    assert rates(StepDecay(at=["50%", "99 updates"]), 100)[98:] == pytest.approx([0.1, 0.01])
