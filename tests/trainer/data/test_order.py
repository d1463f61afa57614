import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.trainer.data import DataError, Permutation, Shuffled


@given(n=st.integers(1, 3000), key=st.integers(0, 2**63 - 1))
def test_permutation_is_a_bijection(n: int, key: int) -> None:
    assert sorted(Permutation(n, key)(np.arange(n)).tolist()) == list(range(n))


@given(n=st.integers(2**31, 2**62), key=st.integers(0, 2**63 - 1), start=st.integers(0, 2**30))
def test_large_permutation_stays_in_its_domain_and_sends_no_two_to_one_place(n: int, key: int, start: int) -> None:
    places = Permutation(n, key)(np.arange(start, start + 500))
    assert places.min() >= 0
    assert places.max() < n
    assert len(set(places.tolist())) == 500


@given(n=st.integers(1, 10**12), key=st.integers(0, 2**63 - 1), data=st.data())
def test_permutation_of_each_position_does_not_depend_on_the_others(n: int, key: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    permutation = Permutation(n, key)
    assert permutation(positions).tolist() == [int(permutation(position)) for position in positions]


def test_every_small_permutation_sends_each_position_everywhere_about_equally_often() -> None:
    for n in (2, 5, 9):
        counts = np.zeros((n, n))
        for key in range(2000):
            counts[np.arange(n), Permutation(n, key)(np.arange(n))] += 1
        expected = 2000 / n
        chi_square = ((counts - expected) ** 2 / expected).sum()
        freedom = (n - 1) ** 2
        assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_permutations_of_a_large_domain_look_random() -> None:
    n = 100_000
    places = Permutation(n, 7)(np.arange(n))
    assert abs(np.corrcoef(places, np.arange(n))[0, 1]) < 0.02
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.02
    assert abs(np.mean(Permutation(n, 7)(np.arange(n)) == Permutation(n, 8)(np.arange(n))) - 1 / n) < 1e-4


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1])
def test_domain_out_of_range_is_refused(n: int) -> None:
    with pytest.raises(DataError, match=r"between 1 and 2\*\*62"):
        Permutation(n, 0)


def test_position_out_of_range_is_refused() -> None:
    with pytest.raises(DataError, match="positions must lie in 0 … 4, found 2 to 5"):
        Permutation(5, 0)([2, 5])


@given(n=st.integers(1, 200), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10**6))
def test_every_epoch_visits_every_sample_once(n: int, seed: int, epoch: int) -> None:
    indices = Shuffled(n, seed).locate(np.arange(epoch * n, (epoch + 1) * n))
    assert sorted(indices.tolist()) == list(range(n))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first, second = Shuffled(100, 3).locate(np.arange(200)).reshape(2, 100)
    assert (first != second).mean() > 0.9
    assert (first != Shuffled(100, 4).locate(np.arange(100))).mean() > 0.9


def test_order_is_the_same_in_every_version() -> None:
    assert Shuffled(10, 0).locate(np.arange(20)).tolist() == [
        7,
        4,
        5,
        0,
        6,
        1,
        8,
        2,
        3,
        9,
        9,
        2,
        4,
        8,
        3,
        6,
        0,
        1,
        5,
        7,
    ]
