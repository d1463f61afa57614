import dataclasses

import pytest

from gradwire.schedulers import Constant, Duration, Horizon, Plan, PlanError, Progress, Schedule, ScheduleError, Times
from gradwire.schedulers.lr import Cosine, LinearDecay, Warmup


def progress(start: int, total: int = 100, end: int | None = None) -> Progress:
    return Progress(start, start if end is None else end, total, Horizon(total))


@dataclasses.dataclass(frozen=True)
class Peak(Schedule):
    """Gives what it will be multiplied with, as absolute schedules need."""

    length: Duration | str | None = None

    def value(self, at: Progress) -> float:
        return at.peak


@dataclasses.dataclass(frozen=True)
class Seen(Schedule):
    """Gives what it sees."""

    def value(self, at: Progress) -> float:
        return at.start + at.end / 1000 + at.total / 1000_000


def test_a_number_before_a_schedule_multiplies_it() -> None:
    schedule = 3e-4 * Constant()
    assert schedule.value(progress(0)) == 3e-4
    assert schedule.peaks() == (3e-4,)
    assert Constant().peaks() == ()


def test_a_number_before_a_joined_schedule_multiplies_all_of_it() -> None:
    schedule = 2.0 * Warmup("10 samples").then(LinearDecay())
    assert schedule.value(progress(4, end=5)) == 1.0
    assert schedule.value(progress(55)) == 1.0
    assert schedule.peaks() == (2.0, 2.0)


def test_numbers_multiply() -> None:
    schedule = 2 * (3.0 * Constant("50%")).then(5.0 * Constant())
    assert [schedule.value(progress(0)), schedule.value(progress(50))] == [6.0, 10.0]
    assert schedule.peaks() == (6.0, 10.0)


def test_a_schedule_is_told_its_peak() -> None:
    assert (8 * Peak()).value(progress(0)) == 64
    assert (2 * (3 * Peak())).value(progress(0)) == 36
    assert Peak().value(progress(0)) == 1.0


def test_a_piece_sees_samples_from_its_own_beginning() -> None:
    schedule = Constant("30 samples").then(Seen())
    assert schedule.value(progress(29, end=35)) == 1.0
    assert schedule.value(progress(30, end=35)) == pytest.approx(0 + 0.005 + 70e-6)
    assert schedule.value(progress(90, end=100)) == pytest.approx(60 + 0.070 + 70e-6)


def test_an_update_across_a_join_belongs_to_the_piece_in_which_it_starts() -> None:
    schedule = Warmup("30 samples").then(LinearDecay())
    assert schedule.value(progress(28, end=35)) == 1.0
    assert schedule.value(progress(35, end=42)) == pytest.approx(65 / 70)


def test_more_than_two_schedules_join_one_after_the_other() -> None:
    schedule = Constant("10%").then(Warmup("20%")).then(Cosine())
    assert [schedule.value(progress(s)) for s in (0, 10, 20, 30, 65, 100)] == pytest.approx([1, 0, 0.5, 1, 0.5, 0])


def test_only_a_schedule_with_a_length_can_be_followed() -> None:
    with pytest.raises(ScheduleError, match="LinearDecay has no length, so nothing can follow it"):
        LinearDecay().then(Constant())
    with pytest.raises(ScheduleError, match="Cosine has no length"):
        Warmup("10%").then(Cosine()).then(Constant())


def test_one_multiplied_schedule_does_not_join_one_that_is_not() -> None:
    with pytest.raises(ScheduleError, match="only one of two joined schedules was multiplied"):
        Warmup("10%").then(3e-4 * Cosine())


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
def test_a_peak_is_a_finite_number_not_below_zero(number: float) -> None:
    with pytest.raises(ScheduleError, match="multiplied with its peak"):
        number * Constant()


def test_a_schedule_longer_than_its_piece_is_refused() -> None:
    schedule = Constant("60 samples").then(Warmup("50 samples").then(LinearDecay()))
    with pytest.raises(PlanError, match=r"Warmup takes 50 samples, but only 40 samples of the run are left"):
        schedule.check(progress(0))
    schedule.check(progress(0, total=110))


def test_a_schedule_as_long_as_its_piece_is_accepted() -> None:
    schedule = Warmup("100 samples").then(LinearDecay(floor=0.25))
    schedule.check(progress(0))
    assert schedule.value(progress(99, end=100)) == 1.0
    assert schedule.value(progress(100)) == 0.25


def test_a_length_in_updates_counts_from_where_the_piece_starts() -> None:
    plan = Plan(
        lr=1.0 * Constant("10 updates").then(Warmup("10 updates").then(LinearDecay())),
        batch=(8 * Constant("10 updates")).then(16 * Constant("10 updates")).then(4 * Constant()),
        run_length="30 updates",
    )
    steps = [step for _, step in plan.updates()]
    assert [step.batch_size for step in steps] == [8] * 10 + [16] * 10 + [4] * 10
    assert [step.lr for step in steps] == pytest.approx(
        [1.0] * 10 + [n / 10 for n in range(1, 11)] + [n / 10 for n in range(10, 0, -1)]
    )


def test_schedules_are_values() -> None:
    assert 3e-4 * Warmup("10%") == Times(3e-4, Warmup(Duration(10, "%")))
    assert hash(Warmup("10%").then(Cosine())) == hash(Warmup("10 %").then(Cosine()))


def test_a_schedule_of_ones_own_needs_only_a_value() -> None:
    class Square(Schedule):
        def value(self, at: Progress) -> float:
            return (1 - at.start / at.total) ** 2

    plan = Plan(lr=4.0 * Square(), batch=10 * Square(), run_length="100 samples")
    steps = [step for _, step in plan.updates()]
    assert steps[0].batch_size == 10
    assert steps[1].batch_size == 8  # 10 · 0.9² = 8.1
    assert sum(step.batch_size for step in steps) == 100
    assert plan.total_updates == len(steps)
