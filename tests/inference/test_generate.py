from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.inference import (
    CacheFullError,
    Caching,
    Completion,
    InferenceError,
    Sampling,
    Stop,
    generate,
    stream_tokens,
)
from tests.inference.models import decoder, prompts

GREEDY = Sampling(temperature=0.0)
UNCACHED = Caching(kind="none")


def successor(ids_BT: Tensor) -> Tensor:
    """A model whose likeliest next token is the last one plus one, of ten."""
    return 20.0 * torch.nn.functional.one_hot((ids_BT + 1) % 10, 10).float()


def flat(ids_BT: Tensor) -> Tensor:
    """A model to which every next token is equally likely."""
    return torch.zeros(*ids_BT.shape, 10)


def tokens(completions: list[Completion]) -> list[list[int]]:
    return [list(each.tokens) for each in completions]


def test_greedy_generation_follows_the_model() -> None:
    found = generate(successor, torch.tensor([[7], [2]]), 5, GREEDY)
    assert tokens(found) == [[8, 9, 0, 1, 2], [3, 4, 5, 6, 7]]
    assert [each.finish for each in found] == ["length", "length"]


def test_nothing_is_added_for_zero_tokens() -> None:
    assert generate(flat, [[3, 1], [4]], 0) == [Completion(0, (), (), "length"), Completion(1, (), (), "length")]


@pytest.mark.parametrize("kind", ["contiguous", "static", "paged", "none"])
@pytest.mark.parametrize("lengths", [(5,), (8, 1, 5)])
def test_greedy_tokens_are_the_same_with_any_cache(kind: Any, lengths: tuple[int, ...]) -> None:
    """Wherever the two best logits differ by more than rounding: here, everywhere."""
    model, rows = decoder(), prompts(lengths)
    expected = [naive(model, row, 20) for row in rows]
    assert tokens(generate(model, rows, 20, GREEDY, caching=Caching(kind=kind))) == expected


def naive(model: Callable[[Tensor], Tensor], row: list[int], count: int) -> list[int]:
    ids = list(row)
    for _ in range(count):
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[0, -1]
        best = logits.topk(2).values
        assert best[0] - best[1] > 1e-4
        ids.append(int(logits.argmax()))
    return ids[len(row) :]


def test_a_window_goes_on_past_the_context_and_an_error_does_not() -> None:
    model = decoder(context=16)
    found = generate(model, [[1, 2, 3]], 40, GREEDY, caching=Caching(limit="window"))
    assert len(found[0].tokens) == 40
    assert list(found[0].tokens[:13]) == naive(model, [1, 2, 3], 13)
    with pytest.raises(CacheFullError, match="make 42, but the model's context is 16"):
        generate(model, [[1, 2, 3]], 40, GREEDY)
    assert len(generate(model, [[1, 2, 3]], 14, GREEDY)[0].tokens) == 14  # the last one is never computed with


def test_a_model_without_a_cache_sees_no_more_than_its_length() -> None:
    seen: list[int] = []

    def model(ids_BT: Tensor) -> Tensor:
        seen.append(ids_BT.shape[1])
        return successor(ids_BT)

    found = generate(model, [[0, 1]], 5, GREEDY, caching=Caching(length=4, limit="window"))
    assert seen == [2, 3, 4, 4, 4]
    assert tokens(found) == [[2, 3, 4, 5, 6]]
    with pytest.raises(CacheFullError, match="sequences of 6 tokens, where the model sees 4"):
        generate(model, [[0, 1]], 5, GREEDY, caching=Caching(length=4))


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others() -> None:
    first, again, other = (generate(flat, [[0], [0]], 30, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert tokens(first) != tokens(other)
    assert first[0].tokens != first[1].tokens  # one seed gives each sequence its own


def test_a_sequence_draws_by_its_own_seed_and_place_whatever_else_is_in_the_batch() -> None:
    model, rows, seeds = decoder(), prompts([4, 9, 2, 6]), [11, 12, 13, 14]
    together = generate(model, rows, 15, seed=seeds)
    alone = [generate(model, [row], 15, seed=[seed])[0] for row, seed in zip(rows, seeds, strict=True)]
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    rest = generate(model, [rows[0] + list(together[0].tokens[:5])], 10, seed=[11])[0]  # cut off and continued
    assert rest.tokens == together[0].tokens[5:]


@pytest.mark.parametrize("kind", ["contiguous", "paged", "none"])
def test_samples_of_one_prompt_are_as_many_prompts(kind: Any) -> None:
    model, rows = decoder(), prompts([7, 3])
    seeds = list(range(6))
    sampled = generate(model, rows, 12, samples=3, seed=seeds, caching=Caching(kind=kind))
    repeated = generate(model, [rows[0]] * 3 + [rows[1]] * 3, 12, seed=seeds, caching=UNCACHED)
    assert tokens(sampled) == tokens(repeated)
    assert [each.prompt for each in sampled] == [0, 0, 0, 1, 1, 1]


def test_a_prompt_is_computed_once_for_all_its_samples() -> None:
    model = decoder()
    seen: list[tuple[int, ...]] = []
    model.embedding.register_forward_hook(lambda module, inputs, output: seen.append(tuple(inputs[0].shape)))
    generate(model, prompts([9]), 3, samples=4)
    assert seen == [(1, 9), (4, 1), (4, 1)]


def test_log_probabilities_are_the_models_own_as_in_training() -> None:
    model, rows = decoder(), prompts([5, 8])
    sampling = Sampling(temperature=0.7, top_k=5, repetition_penalty=1.3)
    for each, row in zip(generate(model, rows, 10, sampling, seed=3), rows, strict=True):
        ids = torch.tensor([row + list(each.tokens)])
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:], reduction="none")
        torch.testing.assert_close(torch.tensor(each.logprobs), -loss[len(row) - 1 :], rtol=0, atol=1e-4)


def test_a_repetition_penalty_counts_the_prompt_and_what_was_added() -> None:
    def sinking(ids_BT: Tensor) -> Tensor:
        return torch.tensor([4.0, 3.5, 3.2, -1.0]).expand(*ids_BT.shape, 4)

    penalized = Sampling(temperature=0.0, repetition_penalty=1.3)
    assert tokens(generate(sinking, [[1], [0]], 3, penalized)) == [[0, 2, 0], [1, 2, 0]]


def test_a_stop_token_ends_a_sequence_and_the_others_go_on() -> None:
    found = generate(successor, [[7], [4], [9]], 8, GREEDY, stop=Stop(tokens=frozenset({9})))
    assert tokens(found) == [[8, 9], [5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert [each.finish for each in found] == ["stop", "stop", "length"]
    assert [len(each.logprobs) for each in found] == [2, 5, 8]


def test_generation_ends_with_the_last_sequence() -> None:
    calls: list[int] = []

    def model(ids_BT: Tensor) -> Tensor:
        calls.append(1)
        return successor(ids_BT)

    generate(model, [[7], [5]], 50, GREEDY, stop=Stop(tokens=frozenset({9})))
    assert len(calls) == 4


def test_a_stop_string_ends_a_sequence_across_tokens() -> None:
    def decode(ids: Any) -> str:
        return "".join("abcdefghij"[token] for token in ids)

    stop = Stop(strings=("ef", "jab"), decode=decode)
    found = generate(successor, [[0], [6]], 9, GREEDY, stop=stop)
    assert [decode(each.tokens) for each in found] == ["bcdef", "hijab"]
    assert [stop.cut(decode(each.tokens)) for each in found] == ["bcd", "hi"]
    assert [each.finish for each in found] == ["stop", "stop"]


def test_tokens_stream_as_they_come() -> None:
    calls: list[int] = []

    def model(ids_BT: Tensor) -> Tensor:
        calls.append(ids_BT.shape[1])
        return successor(ids_BT)

    stream = stream_tokens(model, [[0], [5]], 3, GREEDY)
    first = [next(stream), next(stream)]
    assert [(token.sequence, token.id, token.finish) for token in first] == [(0, 1, None), (1, 6, None)]
    assert calls == [1]
    assert [(token.sequence, token.id, token.finish) for token in stream] == [
        (0, 2, None),
        (1, 7, None),
        (0, 3, "length"),
        (1, 8, "length"),
    ]


def test_the_callers_random_numbers_and_gradients_stay_as_they_are() -> None:
    model = decoder(dropout=0.5).train()
    model.norm.eval()
    before = torch.random.get_rng_state()
    stream = stream_tokens(model, [[0]], 10)
    next(stream)
    assert torch.is_grad_enabled()
    assert not model.training
    rest = [token.id for token in stream]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (model.training, model.norm.training, model.blocks[0].training) == (True, False, True)
    assert rest == [token.id for token in list(stream_tokens(model.eval(), [[0]], 10))[1:]]
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["contiguous", "static", "none"])
def test_a_model_that_has_generated_before_anything_else_learns(kind: Any) -> None:
    model = decoder().train()
    modes: list[bool] = []
    model.embedding.register_forward_hook(lambda module, inputs, out: modes.append(torch.is_inference_mode_enabled()))
    generate(model, [[1, 2, 3]], 4, caching=Caching(kind=kind))
    assert set(modes) == {kind != "none"}
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_no_graph_is_recorded() -> None:
    weight = torch.ones(10, requires_grad=True)
    seen: list[bool] = []

    def model(ids_BT: Tensor) -> Tensor:
        logits = successor(ids_BT) * weight
        seen.append(logits.requires_grad)
        return logits

    generate(model, torch.tensor([[0]]), 2)
    assert seen == [False, False]


@pytest.mark.parametrize("bad", [[], [[]], [[1], []], [1, 2], torch.zeros(0, 3), torch.zeros(2, 0), torch.zeros(3)])
def test_an_empty_or_flat_prompt_is_refused(bad: Any) -> None:
    with pytest.raises(InferenceError, match="a prompt must be token ids, at least one"):
        generate(flat, bad, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be 0 or more"),
        ({"max_new_tokens": 1, "samples": 0}, "samples at least 1, found 1 and 0"),
        ({"max_new_tokens": 1, "seed": [1, 2]}, "seeds must be one for each of 1 sequences, found 2"),
    ],
)
def test_impossible_requests_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InferenceError, match=message):
        generate(flat, [[0]], **arguments)
