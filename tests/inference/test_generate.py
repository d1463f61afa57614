import pytest
import torch
from torch import Tensor

from gradwire.inference import InferenceError, generate


def successor(ids_BT: Tensor) -> Tensor:
    """A model whose likeliest next token is the last one plus one, of ten."""
    return 20.0 * torch.nn.functional.one_hot((ids_BT + 1) % 10, 10).float()


def flat(ids_BT: Tensor) -> Tensor:
    """A model to which every next token is equally likely."""
    return torch.zeros(*ids_BT.shape, 10)


def test_greedy_generation_follows_the_model() -> None:
    ids = generate(successor, torch.tensor([[7], [2]]), 5, temperature=0.0)
    assert ids.tolist() == [[7, 8, 9, 0, 1, 2], [2, 3, 4, 5, 6, 7]]


def test_the_prompt_is_kept_and_nothing_is_added_for_zero_tokens() -> None:
    prompt = torch.tensor([[3, 1, 4]])
    assert torch.equal(generate(flat, prompt, 0), prompt)
    assert torch.equal(generate(flat, prompt, 4)[:, :3], prompt)


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others() -> None:
    prompt = torch.zeros(2, 1, dtype=torch.int64)
    assert torch.equal(generate(flat, prompt, 30, seed=1), generate(flat, prompt, 30, seed=1))
    assert not torch.equal(generate(flat, prompt, 30, seed=1), generate(flat, prompt, 30, seed=2))


def test_the_callers_random_numbers_stay_as_they_are() -> None:
    before = torch.random.get_rng_state()
    generate(flat, torch.zeros(1, 1, dtype=torch.int64), 10)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_model_sees_no_more_than_its_context() -> None:
    seen: list[int] = []

    def model(ids_BT: Tensor) -> Tensor:
        seen.append(ids_BT.shape[1])
        return successor(ids_BT)

    ids = generate(model, torch.tensor([[0, 1]]), 5, temperature=0.0, context=4)
    assert seen == [2, 3, 4, 4, 4]
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5, 6]]


def test_ended_rows_are_filled_and_generation_ends_with_the_last() -> None:
    ids = generate(successor, torch.tensor([[7], [4]]), 50, temperature=0.0, stop=9)
    assert ids.tolist() == [[7, 8, 9, 9, 9, 9], [4, 5, 6, 7, 8, 9]]


def test_no_graph_is_recorded() -> None:
    weight = torch.ones(10, requires_grad=True)
    seen: list[bool] = []

    def model(ids_BT: Tensor) -> Tensor:
        logits = successor(ids_BT) * weight
        seen.append(logits.requires_grad)
        return logits

    generate(model, torch.tensor([[0]]), 2)
    assert seen == [False, False]


@pytest.mark.parametrize("shape", [(0,), (3,), (1, 0), (0, 3)])
def test_an_empty_or_flat_prompt_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InferenceError, match="a prompt must be token ids of shape"):
        generate(flat, torch.zeros(shape, dtype=torch.int64), 1)


@pytest.mark.parametrize(("tokens", "context", "name"), [(-1, None, "max_new_tokens"), (1, 0, "context")])
def test_impossible_lengths_are_refused(tokens: int, context: int | None, name: str) -> None:
    with pytest.raises(InferenceError, match=name):
        generate(flat, torch.zeros(1, 1, dtype=torch.int64), tokens, context=context)
