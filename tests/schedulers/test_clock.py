import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.schedulers import Clock, ClockError


def test_an_update_advances_samples_tokens_and_updates() -> None:
    assert Clock().advance(64, 64 * 128).advance(32, 32 * 128) == Clock(samples=96, tokens=12_288, updates=2)


def test_a_sample_is_one_token_unless_told_otherwise() -> None:
    assert Clock().advance(64) == Clock(samples=64, tokens=64, updates=1)


def test_a_skipped_update_advances_everything_and_is_counted() -> None:
    assert Clock().advance(64, 64, skipped=True) == Clock(samples=64, tokens=64, updates=1, skipped=1)


@given(st.integers(0, 10**18), st.integers(0, 10**18), st.integers(5, 10**9), st.integers(0, 5))
def test_the_dict_round_trips(samples: int, tokens: int, updates: int, skipped: int) -> None:
    clock = Clock(samples, tokens, updates, skipped)
    assert Clock.from_dict(clock.to_dict()) == clock


@pytest.mark.parametrize("counts", [{"samples": -1}, {"samples": 1.5}, {"updates": True}, {"updates": 1, "skipped": 2}])
def test_impossible_counts_are_refused(counts: dict[str, int]) -> None:
    with pytest.raises(ClockError, match="a clock"):
        Clock(**counts)


def test_a_dict_with_other_keys_is_refused() -> None:
    with pytest.raises(ClockError, match="found samples, steps"):
        Clock.from_dict({"samples": 1, "steps": 1})
