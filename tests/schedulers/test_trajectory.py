import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.schedulers.trajectory import last_not_negative, trace, whole_batch


@pytest.mark.parametrize(("size", "granule", "batch"), [(0, 8, 8), (11, 8, 8), (13, 8, 16), (64, 8, 64), (0.2, 1, 1)])
def test_a_batch_is_rounded_to_granules_and_never_empty(size: float, granule: int, batch: int) -> None:
    assert whole_batch(size, granule) == batch


@settings(max_examples=200)
@given(
    full=st.integers(1, 60),
    warmup=st.integers(0, 2000),
    total=st.integers(1, 4000),
    granule=st.integers(1, 5),
)
def test_plateaus_agree_with_walking_every_update(full: int, warmup: int, total: int, granule: int) -> None:
    def size_at(seen: int) -> int:
        return whole_batch(full * min(1.0, seen / warmup) if warmup else full, granule)

    walked, seen = [], 0
    while seen < total:
        walked.append(min(size_at(seen), total - seen))
        seen += walked[-1]
    trajectory = trace(size_at, lambda seen: math.inf, samples=total)
    assert (trajectory.updates, trajectory.samples) == (len(walked), total)
    assert trajectory.largest == max(walked)
    assert [trajectory.samples_after(n) for n in range(len(walked) + 1)] == [
        sum(walked[:n]) for n in range(len(walked) + 1)
    ]
    assert [trajectory.updates_after(sum(walked[:n])) for n in range(len(walked))] == list(range(len(walked)))


def test_without_a_promise_every_update_is_looked_at() -> None:
    def size_at(seen: int) -> int:
        return 1 if 40 <= seen < 60 else 10

    assert trace(size_at, lambda seen: seen, samples=100).updates == 4 + 20 + 4


def test_a_promise_is_kept_to_where_it_ends() -> None:
    def size_at(seen: int) -> int:
        return 1 if 40 <= seen < 60 else 10

    def monotone_until(seen: int) -> int:
        return next(end for end in (40, 60, 10**9) if seen < end)

    trajectory = trace(size_at, monotone_until, samples=100)
    assert (trajectory.starts, trajectory.sizes, trajectory.updates) == ((0, 40, 60), (10, 1, 10), 28)


def test_a_limit_in_updates_may_end_within_one() -> None:
    assert trace(lambda seen: 10, lambda seen: math.inf, updates=3).samples == 30
    trajectory = trace(lambda seen: 10, lambda seen: math.inf, updates=2.5)
    assert (trajectory.samples, trajectory.updates) == (25, 3)


def test_past_the_end_the_last_batch_goes_on() -> None:
    trajectory = trace(lambda seen: 10, lambda seen: math.inf, samples=95)
    assert (trajectory.updates, trajectory.samples_after(10), trajectory.samples_after(12)) == (10, 95, 115)
    assert trajectory.updates_after(115) == 12


def test_a_million_updates_are_one_plateau() -> None:
    looked = []

    def size_at(seen: int) -> int:
        looked.append(seen)
        return 64

    assert trace(size_at, lambda seen: math.inf, samples=64_000_000).updates == 1_000_000
    assert len(looked) < 10


@given(st.integers(-1000, 1000), st.integers(1, 40), st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_last_place_not_negative_is_found(root: int, step: int, below: int, above: int) -> None:
    found = last_not_negative(lambda n: -((n - root) // step), root - below, root + step + above)
    assert found == root + step - 1
