import pytest
import torch

from gradwire.inference import CacheFullError, Caching, Compiled, InferenceError, Sampling, Static, generate
from gradwire.inference.steps import Cached
from tests.inference.models import decoder, logits_by_step, prompts, recomputed

GREEDY = Sampling(temperature=0.0)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_steps_have_the_plain_models_logits(backend: str) -> None:
    model = decoder(layers=1)
    rows, following = prompts([3, 5, 5, 4]), torch.tensor(prompts([11] * 4))  # until the cache is full
    found = logits_by_step(Compiled(model, backend), Static(model.kv_layout(), 4, 16), rows, following)
    torch.testing.assert_close(found, recomputed(model, rows, following), rtol=0, atol=1e-4)


def test_sizes_and_lengths_follow_each_other_in_any_order() -> None:
    model = decoder().train()
    compiled, static = Compiled(model, "eager"), Caching(kind="static")
    for lengths, new in (((5,), 20), ((3, 4), 20), ((5,), 20), ((1,), 64), ((8, 2), 9)):
        rows = prompts(lengths)
        expected = generate(model, rows, new, GREEDY)
        found = generate(compiled, rows, new, GREEDY, caching=static)
        assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert model.training
    other = generate(compiled, prompts([5]), 20, GREEDY)  # another cache than a static one, as without compiling
    assert other == generate(model, prompts([5]), 20, GREEDY)


def test_a_cache_that_is_used_again_may_have_other_sequences() -> None:
    model = decoder()
    compiled, cache = Compiled(model, "eager"), Static(model.kv_layout(), 4, 32)
    for lengths, copies in (((3, 4), 1), ((5,), 1), ((3, 4), 2), ((6, 2, 3), 1)):
        rows, following = prompts(lengths), torch.tensor(prompts([6] * len(lengths)))
        steps = Cached(compiled, cache)
        steps.first(rows)
        steps.next(following[:, 0])
        steps.repeat(copies)
        found = steps.next(following[:, 1].repeat_interleave(copies))
        expected = recomputed(model, rows, following[:, :2])[2].repeat_interleave(copies, 0)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_full_cache_is_told() -> None:
    model = decoder()
    cache = Static(model.kv_layout(), 1, 3)
    steps = Cached(Compiled(model, "eager"), cache)
    steps.first(prompts([2]))
    steps.next(torch.tensor([1]))
    with pytest.raises(CacheFullError, match="4 tokens, where the cache was allocated for 3"):
        steps.next(torch.tensor([1]))


def test_a_machine_without_a_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def none() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(InferenceError, match="needs a C\\+\\+ compiler, and none was found: install g\\+\\+"):
        Compiled(decoder())
