from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.inference import InferenceError, Sampling
from gradwire.inference.sampling import uniform

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().unsqueeze(0)


def frequencies(sampling: Sampling, logits_V: torch.Tensor, draws: int = 20_000) -> list[float]:
    numbers = torch.rand(draws, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ids = sampling.choose(logits_V.expand(draws, -1), numbers)
    return (torch.bincount(ids, minlength=logits_V.shape[-1]) / draws).tolist()


def test_temperature_one_draws_by_the_models_own_probabilities() -> None:
    assert frequencies(Sampling(), LOGITS) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.015)


def test_temperature_divides_the_logits() -> None:
    squared = torch.tensor([0.25, 0.09, 0.0225, 0.0025])
    assert frequencies(Sampling(temperature=0.5), LOGITS) == pytest.approx(
        (squared / squared.sum()).tolist(), abs=0.015
    )


def test_temperature_zero_takes_the_likeliest() -> None:
    assert frequencies(Sampling(temperature=0.0), LOGITS) == [1.0, 0.0, 0.0, 0.0]


def test_top_k_keeps_the_k_likeliest_and_their_ratio() -> None:
    assert frequencies(Sampling(top_k=2), LOGITS) == pytest.approx([0.625, 0.375, 0, 0], abs=0.015)


@pytest.mark.parametrize(("p", "kept"), [(0.4, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (1.0, 4)])
def test_top_p_keeps_the_fewest_tokens_that_reach_p(p: float, kept: int) -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log() if p == 0.5 else LOGITS
    assert sum(f > 0 for f in frequencies(Sampling(top_p=p), logits)) == kept


@pytest.mark.parametrize(("p", "kept"), [(1.0, 1), (0.61, 1), (0.6, 2), (0.31, 2), (0.3, 3), (0.05, 4)])
def test_min_p_keeps_tokens_relative_to_the_likeliest(p: float, kept: int) -> None:
    logits = torch.tensor([[0.5, 0.3001, 0.1501, 0.0501]]).log()
    assert sum(f > 0 for f in frequencies(Sampling(min_p=p), logits)) == kept


def test_a_repetition_penalty_makes_seen_tokens_less_likely_whatever_their_sign() -> None:
    logits, seen = torch.tensor([[2.0, 1.5, -1.0, -1.5]]), torch.tensor([[True, False, True, False]])
    sampling = Sampling(repetition_penalty=2.0)
    numbers = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ids = sampling.choose(logits.expand(20_000, -1), numbers, seen.expand(20_000, -1))
    expected = torch.tensor([1.0, 1.5, -2.0, -1.5]).softmax(-1)
    assert (torch.bincount(ids, minlength=4) / 20_000).tolist() == pytest.approx(expected.tolist(), abs=0.015)


@given(st.integers(0, 2**63), st.integers(0, 10**9))
def test_random_numbers_depend_on_seed_and_position_and_stay_below_one(seed: int, position: int) -> None:
    number = uniform(seed, position)
    assert 0 <= number < 1
    assert number == uniform(seed, position)
    assert number not in (uniform(seed, position + 1), uniform(seed + 1, position))


def test_random_numbers_are_uniform() -> None:
    numbers = torch.tensor([uniform(5, position) for position in range(20_000)])
    assert numbers.mean().item() == pytest.approx(0.5, abs=0.01)
    assert (torch.histc(numbers, 10, 0, 1) / 20_000).tolist() == pytest.approx([0.1] * 10, abs=0.01)


@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=30),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.floats(0.01, 1.0)),
    st.floats(0.0, 3.0),
)
@settings(max_examples=60)
def test_a_draw_is_always_a_token_and_the_likeliest_one_is_never_cut(
    logits: list[float], top_k: int | None, top_p: float | None, temperature: float
) -> None:
    logits_BV = torch.tensor([logits, logits])
    sampling = Sampling(temperature, top_k, top_p)
    drawn = sampling.choose(logits_BV, torch.tensor([0.0, 1 - 2**-48], dtype=torch.float64))
    assert drawn.shape == (2,)
    assert bool(((drawn >= 0) & (drawn < len(logits))).all())
    if top_k == 1 and logits.count(max(logits)) == 1:
        assert drawn.tolist() == [logits_BV[0].argmax().item()] * 2


def test_half_precision_logits_are_sampled_in_single_precision() -> None:
    assert frequencies(Sampling(top_p=0.8), LOGITS.to(torch.bfloat16)) == pytest.approx([0.625, 0.375, 0, 0], abs=0.015)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 0.0},
        {"repetition_penalty": 0.0},
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InferenceError, match=next(iter(values))):
        Sampling(**values)
