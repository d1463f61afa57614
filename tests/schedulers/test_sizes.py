"""The batches of a run against the straightforward way to find them: every update walked, every length searched."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.schedulers import Clock, Duration, Horizon, Plan, PlanError, Progress, Schedule, batch, lr
from gradwire.schedulers.sizes import follow
from gradwire.schedulers.trajectory import last_not_negative, whole_batch

SAMPLES = st.integers(1, 3000).map(lambda count: f"{count} samples")
UPDATES = st.integers(1, 40).map(lambda count: f"{count} updates")
LENGTHS = st.one_of(SAMPLES, UPDATES, st.integers(1, 100).map(lambda share: f"{share}%"))
FLOORS = st.floats(0, 1)
WITH_LENGTH = st.one_of(
    st.builds(batch.LinearWarmup, LENGTHS),
    st.builds(batch.LinearDecay, FLOORS, LENGTHS),
    st.builds(lr.Cosine, FLOORS, LENGTHS),
    st.builds(batch.Constant, LENGTHS),
)
TAILS = st.one_of(
    WITH_LENGTH,
    st.builds(batch.LinearDecay, FLOORS),
    st.builds(lr.Polynomial, st.floats(0.5, 3), FLOORS),
    st.builds(lr.InverseSquareRoot, SAMPLES),
    st.just(batch.Doubling(4, "10%")),
)
FACTORS = st.one_of(TAILS, st.builds(Schedule.then, WITH_LENGTH, TAILS))


def walked(size_at: Callable[[int], int], updates: int) -> list[int]:
    sizes, seen = [], 0
    for _ in range(updates):
        sizes.append(size_at(seen))
        seen += sizes[-1]
    return sizes


def straightforward(schedule: Schedule, updates: int, granule: int) -> tuple[list[int], int]:
    """All batches, and the length of the run that they are for."""

    def of(total: int) -> list[int]:
        horizon = Horizon(total, granule)
        settled = schedule.settled(Progress(0, 0, total, horizon))
        return walked(lambda seen: whole_batch(settled.value(Progress(seen, seen, total, horizon)), granule), updates)

    low = max(updates * granule, 1)
    first = sum(of(low))
    if sum(of(first)) == first:
        return of(first), first
    high = max(first, low + 1)
    while sum(of(high)) >= high:
        low, high = high, 2 * high
    total = last_not_negative(lambda total: sum(of(total)) - total, low, high)
    return of(total), total


@settings(max_examples=80)
@given(FACTORS, st.integers(2, 60), st.integers(1, 60), st.sampled_from([1, 2, 8]))
def test_a_run_in_updates_has_the_batches_of_the_straightforward_search(
    factor: Schedule, granules: int, updates: int, granule: int
) -> None:
    schedule = granules * granule * factor
    sizes, total = straightforward(schedule, updates, granule)
    found = follow(schedule, Duration(updates, "updates"), Horizon(0, granule))
    trajectory = found.trajectory
    assert [trajectory.samples_after(done) for done in range(updates + 1)] == [
        sum(sizes[:done]) for done in range(updates + 1)
    ]
    assert (trajectory.updates, found.horizon.total) == (updates, total)


@given(FACTORS, st.integers(1, 4000), st.lists(st.integers(0, 4000), max_size=20))
def test_values_along_a_piece_are_those_of_single_updates(factor: Schedule, total: int, starts: list[int]) -> None:
    horizon = Horizon(total)
    schedule = (48 * factor).settled(Progress(0, 0, total, horizon))
    values = schedule.along(Progress(0, 0, total, horizon))
    assert [values(start) for start in starts] == [
        schedule.value(Progress(start, start, total, horizon)) for start in starts
    ]


class Counted(Schedule):
    """A warm-up that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def value(self, at: Progress) -> float:
        self.asked += 1
        return min(at.start / at.total, 1.0)

    def monotone_until(self, at: Progress) -> float:
        return math.inf


@pytest.mark.parametrize("updates", [2_000, 20_000])
def test_sizes_in_small_steps_are_found_with_two_looks_at_each_plateau(updates: int) -> None:
    counted = Counted()
    sizes = follow(4096 * counted, Duration(40_000 * updates, "samples"), Horizon(0))
    assert len(sizes.trajectory.sizes) > 3000
    assert counted.asked < 2.6 * len(sizes.trajectory.sizes)


@given(FACTORS, st.integers(1, 4000), st.integers(0, 4200), st.sampled_from([1, 8]))
def test_the_updates_that_are_left_are_those_that_a_run_makes_from_there(
    factor: Schedule, total: int, start: int, granule: int
) -> None:
    try:
        plan = Plan(lr=1.0, batch=48 * factor, run_length=f"{total} samples", granule=granule)
    except PlanError:  # it does not fit into the run
        return
    assert plan.updates_left(Clock(start)) == len(list(plan.updates(Clock(start))))
