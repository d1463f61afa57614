import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.schedulers.errors import ScheduleError
from gradwire.schedulers.noise_scale import NoiseScale, Norms, total

positive = st.floats(1e-3, 1e3)


def test_two_sizes_give_noise_and_gradient() -> None:
    norms = Norms(small=65.0, big=2.0, small_size=1, big_size=64)
    assert norms.noise == pytest.approx(64.0, rel=1e-12)
    assert norms.gradient == pytest.approx(1.0, rel=1e-12)
    scale = NoiseScale()
    scale.update(norms)
    assert scale.value == pytest.approx(64.0, rel=1e-12)


@given(noise=positive, gradient=positive, small=st.integers(1, 100), more=st.integers(1, 10_000))
def test_expected_norms_give_back_what_they_were_made_of(noise: float, gradient: float, small: int, more: int) -> None:
    big = small + more
    norms = Norms(gradient + noise / small, gradient + noise / big, small, big)
    at_most = (gradient + noise) * 1e-15 / (1 / small - 1 / big)  # rounding of the difference
    assert norms.noise == pytest.approx(noise, rel=1e-9, abs=4 * at_most)
    assert norms.gradient == pytest.approx(gradient, rel=1e-9, abs=4 * at_most / small)


@pytest.mark.parametrize(("small", "big"), [(64, 64), (65, 64), (0, 64), (-1, 64), (1, math.inf), (math.nan, 64)])
def test_sizes_out_of_order_are_refused(small: float, big: float) -> None:
    with pytest.raises(ScheduleError, match=r"0 < small_size < big_size; found small_size=.*several ranks"):
        Norms(1.0, 1.0, small, big)


def test_smoothing_comes_before_the_division() -> None:
    scale = NoiseScale(decay=0.5)
    scale.update(Norms(5.0, 2.0, 1, 4))  # 𝒮 = 4, 𝒢² = 1
    scale.update(Norms(12.0, 9.0, 1, 4))  # 𝒮 = 4, 𝒢² = 8
    assert scale.noise == pytest.approx(4.0)
    assert scale.gradient == pytest.approx((1 * 0.25 + 8 * 0.5) / 0.75)
    assert scale.value == pytest.approx(4.0 / ((1 * 0.25 + 8 * 0.5) / 0.75))


def test_one_measurement_counts_in_full_at_every_decay() -> None:
    scale = NoiseScale(decay=0.999)
    scale.update(Norms(5.0, 2.0, 1, 4))
    assert (scale.noise, scale.gradient) == (pytest.approx(4.0), pytest.approx(1.0))


def test_nothing_measured_is_no_value() -> None:
    scale = NoiseScale()
    assert (scale.value, scale.noise, scale.gradient) == (None, None, None)


def test_a_gradient_lost_in_the_noise_is_no_value_but_is_not_forgotten() -> None:
    scale = NoiseScale(decay=0.5)
    scale.update(Norms(5.0, 1.0, 1, 4))  # 𝒢² = −1/3
    assert scale.value is None
    assert scale.gradient == pytest.approx(-1 / 3)
    scale.update(Norms(5.0, 2.0, 1, 4))  # 𝒢² = 1
    assert scale.value == pytest.approx((16 / 3 * 0.25 + 4 * 0.5) / (-1 / 3 * 0.25 + 1 * 0.5))


def test_noise_below_zero_is_a_noise_scale_of_zero() -> None:
    scale = NoiseScale()
    scale.update(Norms(2.0, 3.0, 1, 4))
    assert scale.value == 0.0
    assert scale.noise == pytest.approx(-4 / 3)


@pytest.mark.parametrize(("small", "big"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.inf), (math.inf, math.inf)])
def test_what_is_not_finite_is_skipped_and_counted(small: float, big: float) -> None:
    scale = NoiseScale()
    scale.update(Norms(5.0, 2.0, 1, 4))
    before = scale.value
    scale.update(Norms(small, big, 1, 4))
    assert (scale.value, scale.measurements, scale.skipped) == (before, 1, 1)


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=8), st.integers(1, 7))
def test_resumed_from_json_it_ends_in_the_same_bits(norms: list[tuple[float, float]], cut: int) -> None:
    whole, resumed = NoiseScale(0.9), NoiseScale(0.9)
    for index, (small, big) in enumerate(norms):
        if index == cut:
            resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
        for scale in (whole, resumed) if index >= cut else (whole,):
            scale.update(Norms(small, big, 3, 17))
    if cut < len(norms):
        assert resumed.state_dict() == whole.state_dict()


def test_state_of_something_else_is_refused() -> None:
    with pytest.raises(ScheduleError, match="a noise scale's state has noise, gradient"):
        NoiseScale().load_state_dict({"mean": 1.0})


@pytest.mark.parametrize("decay", [1.0, -0.1, math.nan])
def test_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(ScheduleError, match=r"lies in \[0, 1\)|a finite number"):
        NoiseScale(decay)


def test_groups_add_up_to_the_total() -> None:
    parts = [Norms(5.0, 2.0, 1, 4), Norms(12.0, 9.0, 1, 4)]
    assert total(parts) == Norms(17.0, 11.0, 1, 4)
    assert total(parts).noise == pytest.approx(sum(part.noise for part in parts))
    assert total(parts).gradient == pytest.approx(sum(part.gradient for part in parts))


def test_groups_of_different_updates_have_no_total() -> None:
    with pytest.raises(ScheduleError, match="share one pair of sizes"):
        total([Norms(5.0, 2.0, 1, 4), Norms(5.0, 2.0, 1, 8)])
    with pytest.raises(ScheduleError, match="no norms"):
        total([])


@given(small=positive, big=positive, gradients=st.integers(2, 64), scale=st.floats(1, 64), reference=st.integers(1, 64))
def test_adascale_measures_the_same_two_numbers(
    small: float, big: float, gradients: int, scale: float, reference: int
) -> None:
    """AdaScale (arXiv 2007.05105): σ² and μ² from cN local gradients at S times the reference batch B₀."""
    variance = scale / (gradients - 1) * (small - big)
    mean = big - variance / scale
    batch = scale * reference
    norms = Norms(small, big, batch / gradients, batch)
    close = {"rel": 1e-6, "abs": 1e-9 * (small + big) * scale}
    assert norms.noise / reference == pytest.approx(variance, **close)
    assert norms.gradient == pytest.approx(mean, **close)


def test_adascales_gain_from_the_noise_scale() -> None:
    variance, mean, scale, reference = 3.0, 1.0, 4.0, 32
    batch = scale * reference
    norms = Norms(mean + variance * reference / 8, mean + variance / scale, 8, batch)
    measured = NoiseScale()
    measured.update(norms)
    assert measured.value is not None
    phi = measured.value / reference
    assert (phi + 1) / (phi / scale + 1) == pytest.approx((variance + mean) / (variance / scale + mean))
    assert (phi + 1) / (phi / scale + 1) == pytest.approx(2.2857, abs=5e-5)
