from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

from gradwire.inference import (  # noqa: E402 - needs transformers
    Caching,
    Contiguous,
    Paged,
    Pool,
    Sampling,
    Static,
    Table,
    UnsuitedModelError,
    Window,
    generate,
)
from gradwire.inference.transformers_cache import TransformersModel  # noqa: E402
from tests.inference.models import logits_by_step, prompts  # noqa: E402

LLAMA = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIGS: dict[str, Callable[..., Any]] = {
    "gpt2": lambda: transformers.GPT2Config(vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=4),
    "llama": lambda **more: transformers.LlamaConfig(
        vocab_size=61, num_key_value_heads=2, max_position_embeddings=64, **LLAMA, **more
    ),
    "qwen3": lambda: transformers.Qwen3Config(
        vocab_size=61, num_key_value_heads=1, head_dim=16, max_position_embeddings=64, **LLAMA
    ),
    "qwen2": lambda: transformers.Qwen2Config(
        vocab_size=61, num_key_value_heads=2, max_position_embeddings=64, use_sliding_window=False, **LLAMA
    ),
}


def made(name: str, **more: Any) -> TransformersModel:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](**more)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    return TransformersModel(model)


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest) -> TransformersModel:
    return made(request.param)


def recomputed(model: TransformersModel, rows: list[list[int]], following: torch.Tensor) -> torch.Tensor:
    steps = following.shape[1] + 1
    with torch.no_grad():
        found = [
            model(torch.tensor([row + new.tolist()]))[0, -steps:] for row, new in zip(rows, following, strict=True)
        ]
    return torch.stack(found, 1)


@pytest.mark.parametrize("lengths", [(1,), (9,), (8, 8), (1, 12, 5)])
@pytest.mark.parametrize("kind", ["contiguous", "static", "paged"])
def test_cached_logits_equal_uncached_ones_at_every_step(
    model: TransformersModel, kind: str, lengths: tuple[int, ...]
) -> None:
    rows, following = prompts(lengths), torch.tensor(prompts([8] * len(lengths)))
    cache = Caching(kind=kind, block=4).make(model.kv_layout(), len(rows), max(lengths) + 8)  # type: ignore[arg-type]
    assert isinstance(cache, {"contiguous": Contiguous, "static": Static, "paged": Paged}[kind])
    found = logits_by_step(model, cache, rows, following)
    torch.testing.assert_close(found, recomputed(model, rows, following), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_attention_written_out_sees_the_same(name: str) -> None:
    model, rows, following = made(name), prompts([9, 4]), torch.tensor(prompts([5, 5]))
    expected = recomputed(model, rows, following)
    model.model.set_attn_implementation("eager")  # type: ignore[operator]
    pool = Pool(model.kv_layout(), 8, block=4)
    for cache in (Contiguous(model.kv_layout(), 2, 14), Paged(pool, [Table(pool), Table(pool)])):
        torch.testing.assert_close(logits_by_step(model, cache, rows, following), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen2"])
@pytest.mark.parametrize("lengths", [(4,), (20,), (3, 17)])
def test_a_window_equals_recomputation_with_its_mask_and_positions(name: str, lengths: tuple[int, ...]) -> None:
    """One layer of cache at a time cannot be recomputed from the tokens alone in a deep model; so each query goes
    through a model that sees exactly its window's tokens, which is the same where there is one layer."""
    model = made(name)
    model.model.model.layers = model.model.model.layers[:1]  # type: ignore[index,union-attr]
    model.model.config.num_hidden_layers = 1  # type: ignore[union-attr]
    rows, following = prompts(lengths), torch.tensor(prompts([20] * len(lengths)))
    cache = Window(model.kv_layout(), len(rows), 10, kept=3)
    found = logits_by_step(model, cache, rows, following)
    for row, ids in enumerate(rows):
        ids = ids + following[row].tolist()
        for step in range(21):
            t = len(ids) - 21 + step
            visible = ids[: t + 1] if t < 10 else ids[:3] + ids[t - 6 : t + 1]
            with torch.no_grad():
                expected = model(torch.tensor([visible]))[0, -1]
            torch.testing.assert_close(found[step, row], expected, rtol=0, atol=1e-4)


def test_greedy_tokens_are_those_of_transformers_own_generation(model: TransformersModel) -> None:
    ids = torch.tensor(prompts([6, 6]))
    own = model.model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    found = generate(model, ids, 12, Sampling(temperature=0.0))
    assert [list(each.tokens) for each in found] == own[:, 6:].tolist()


def test_learned_positions_have_no_window() -> None:
    model = made("gpt2")
    with pytest.raises(UnsuitedModelError, match="a window needs rotary positions"):
        generate(model, [[1, 2]], 80, caching=Caching(limit="window"))


def test_keys_that_turn_in_another_way_have_no_window() -> None:
    model = made("llama")
    rotary = model.model.model.rotary_emb  # type: ignore[union-attr]
    layout = model.kv_layout()
    rotary.inv_freq.mul_(1.5)  # type: ignore[union-attr,operator]
    with pytest.raises(UnsuitedModelError, match="turns its keys in another way"):
        model(torch.zeros(1, 3, dtype=torch.int64), cache=Window(layout, 1, 10))


def test_positions_that_change_their_frequencies_have_no_window() -> None:
    dynamic = made("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0})
    assert dynamic.kv_layout().rotation is None
    linear = made("llama", rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0})
    assert linear.kv_layout().rotation is not None


def test_models_with_other_layers_are_refused() -> None:
    config = transformers.MistralConfig(vocab_size=61, num_key_value_heads=2, sliding_window=8, **LLAMA)
    config.layer_types = ["sliding_attention", "full_attention"]
    with pytest.raises(UnsuitedModelError, match="has layers of kind full_attention, sliding_attention"):
        TransformersModel(transformers.AutoModelForCausalLM.from_config(config))
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"]())
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(UnsuitedModelError, match="must be computed by sdpa or eager, found 'flex_attention'"):
        TransformersModel(model)
