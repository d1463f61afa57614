"""From measurements to advice."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.schedulers.adascale import AdaScale
from gradwire.schedulers.scaling import Linear, SquareRoot
from gradwire.trainer.recommendation import Setup, power_of_two_granules, recommend
from gradwire.trainer.rehearsal import Speed

SETUP = Setup(
    batch_size=64,
    granule=1,
    world_size=2,
    total_samples=1_000_000,
    lr=0.1,
    betas=(0.9, 0.99),
    scaling=None,
    reference=None,
    has_warmup=True,
    length_in_updates=False,
)
SPEEDS = [Speed(size, 1.0, rate, rate, 3) for size, rate in ((1, 100.0), (2, 180.0), (4, 196.0), (8, 200.0))]


def advised(noise_scale, **changes):
    return recommend(replace(SETUP, **changes), SPEEDS, noise_scale)


def test_the_smallest_micro_batch_within_a_twentieth_of_the_best_is_advised():
    assert advised(256.0).micro_batch == 4


def test_the_global_batch_is_the_power_of_two_nearest_the_noise_scale_by_ratio():
    assert [advised(noise).batch_size for noise in (180.0, 182.0, 256.0)] == [128, 256, 256]


@given(st.floats(1e-3, 1e9), st.integers(1, 100))
def test_a_batch_is_granules_times_a_power_of_two(samples, granule):
    size = power_of_two_granules(samples, granule)
    assert size % granule == 0 and (size // granule).bit_count() == 1
    assert samples < granule or 2**-0.51 < size / samples < 2**0.51


def test_a_batch_below_what_keeps_the_ranks_busy_is_not_advised():
    found = advised(1.0)
    assert (found.batch_size, found.micro_batch) == (8, 4)  # 2 ranks with passes of 4
    assert "above the noise scale" in found.advice[1].reason


def test_a_run_keeps_a_hundred_updates():
    found = advised(1e6)
    assert found.batch_size == 8192 and "100 updates" in found.advice[1].reason
    assert "1,048,576" in found.advice[1].reason


def test_without_a_noise_scale_the_batch_stays():
    found = advised(None)
    assert (found.batch_size, found.lr) == (64, 0.1)
    assert found.overrides == ["batch.micro=4", "lr.warmup=12800 samples"]


def test_a_run_given_in_updates_keeps_its_samples():
    assert "run.length=1000000 samples" in advised(256.0, length_in_updates=True).overrides
    assert "run.length=1000000 samples" not in advised(64.0, length_in_updates=True).overrides


def test_without_scaling_adam_is_offered_the_root_and_sgd_the_line():
    adam, sgd = advised(256.0), advised(256.0, betas=None)
    assert (adam.lr, sgd.lr) == (0.2, 0.4)  # κ = 4
    assert "square-root" in adam.advice[2].reason and "linear" in sgd.advice[2].reason
    assert "optimizer.lr=0.2" in adam.overrides and "optimizer.lr=0.4" in sgd.overrides


def test_the_configured_rule_counts():
    found = advised(256.0, scaling=Linear())
    assert found.lr == 0.4 and "Linear" in found.advice[2].reason


def test_a_rule_with_its_own_reference_needs_no_other_rate():
    found = advised(256.0, scaling=SquareRoot(16), reference=16)
    assert found.lr == pytest.approx(0.4)  # κ = 16
    assert not [override for override in found.overrides if override.startswith("optimizer.lr")]


def test_a_rule_that_measures_is_left_to_it():
    found = advised(256.0, scaling=AdaScale(16), reference=16)
    assert found.lr == 0.1 and "AdaScale multiplies it while training" in found.advice[2].reason
    assert not [override for override in found.overrides if override.startswith("optimizer.lr")]


def test_a_rule_that_refuses_is_quoted():
    found = advised(1024.0, scaling=SquareRoot(adapt_betas=True))
    assert found.lr == 0.1 and "κ" in found.advice[2].reason
    assert "optimizer.lr=0.1" not in found.overrides


def test_warm_up_lasts_as_long_as_the_second_moment_takes():
    assert advised(256.0).warmup_updates == 200  # 2 / (1 − 0.99)
    assert advised(8192.0).warmup_updates == 12  # a tenth of 123 updates
    assert advised(256.0, betas=None).warmup_updates == 218  # an eighteenth of 3907
    assert not [word for word in advised(256.0, has_warmup=False).overrides if "warmup" in word]
