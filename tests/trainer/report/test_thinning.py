"""Thinning draws the same picture with fewer points."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gradwire.trainer.report.thinning import spread, thin

values = arrays(np.float64, st.integers(1, 400), elements=st.floats(-1e6, 1e6))


@given(values, st.integers(4, 60))
def test_ends_and_extremes_stay_and_nothing_is_invented(given: np.ndarray, most: int) -> None:
    kept = thin(given, most)
    assert len(kept) <= most and (np.diff(kept) > 0).all()
    assert kept[0] == 0 and kept[-1] == len(given) - 1
    assert given[kept].min() == given.min() and given[kept].max() == given.max()


@given(values)
def test_few_points_all_stay(given: np.ndarray) -> None:
    assert thin(given, len(given) + 4).tolist() == list(range(len(given)))


def test_a_spike_of_one_point_stays_in_a_hundred_thousand() -> None:
    given = np.zeros(100_000)
    given[54_321] = 1.0
    kept = thin(given, 2000)
    assert 54_321 in kept and len(kept) <= 2000


def test_every_stretch_keeps_its_own_extremes() -> None:
    given = np.sin(np.arange(10_000) / 7.0)
    kept = thin(given, 402)
    for start in range(0, 10_000, 50):
        here = kept[(kept >= start) & (kept < start + 50)]
        assert {given[start : start + 50].min(), given[start : start + 50].max()} <= set(given[here])


@given(st.integers(1, 1000), st.integers(2, 50))
def test_spread_places_hold_first_and_last(count: int, most: int) -> None:
    chosen = spread(count, most)
    assert chosen[0] == 0 and chosen[-1] == count - 1 and len(chosen) == min(count, most)
