import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import gradwire.conf
from gradwire.trainer.models import Decoder, ModelError
from gradwire.trainer.models.decoder import rotate

MODELS = Path(str(next(iter(gradwire.conf.__path__)))) / "model"


def small(**changes: Any) -> Decoder:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocabulary": 50, "context": 16, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2}
    return Decoder(**(sizes | changes))


def test_logits_have_one_row_of_the_vocabulary_for_each_token() -> None:
    assert small()(torch.randint(0, 50, (3, 7))).shape == (3, 7, 50)


def test_a_token_changes_no_logits_before_it() -> None:
    model = small()
    ids = torch.randint(0, 50, (1, 16))
    changed = ids.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 50
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-4)


def test_a_fresh_model_predicts_every_token_about_equally() -> None:
    ids = torch.randint(0, 50, (8, 16))
    logits = small(tied=False)(ids)
    loss = functional.cross_entropy(logits.flatten(0, 1), torch.randint(0, 50, (128,)))
    assert abs(loss.item() - math.log(50)) < 0.1


def test_projections_into_the_residual_stream_start_smaller_with_depth() -> None:
    deviations = {n: p.std().item() for n, p in small(width=256, layers=8).named_parameters() if p.dim() == 2}
    inner = {name: d for name, d in deviations.items() if name.endswith(("attend.weight", "down.weight"))}
    assert len(inner) == 16
    for deviation in inner.values():
        assert deviation == pytest.approx(0.02 / 4, rel=0.05)
    for name in deviations.keys() - inner.keys():
        assert deviations[name] == pytest.approx(0.02, rel=0.05)


def test_tied_embeddings_are_one_parameter_and_untied_ones_two() -> None:
    tied, untied = small(), small(tied=False)
    assert tied.output.weight is tied.embedding.weight
    extra = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters())
    assert extra == 50 * 32


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_equals_the_formula_written_out(kv_heads: int) -> None:
    """softmax(QKᵀ/√E)V with each key/value head repeated for its query heads, positions as complex rotations."""
    model = small(layers=1, kv_heads=kv_heads).double()
    block = model.blocks[0]
    x_BTD = torch.randn(2, 5, 32, dtype=torch.float64)
    groups = block.grouped_qkv(x_BTD).view(2, 5, kv_heads, 4 // kv_heads + 2, 8)
    q, k, v = groups[:, :, :, :-2].flatten(2, 3), groups[:, :, :, -2], groups[:, :, :, -1]
    angles = torch.outer(torch.arange(5.0), 10_000.0 ** -(torch.arange(0, 8, 2) / 8)).double()
    turn = torch.polar(torch.ones_like(angles), angles)[None, :, None]

    def turned(x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x[..., :4], x[..., 4:]) * turn
        return torch.cat([z.real, z.imag], -1)

    q, k = turned(q), turned(k).repeat_interleave(4 // kv_heads, 2)
    v = v.repeat_interleave(4 // kv_heads, 2)
    scores = torch.einsum("bthe,bshe->bhts", q, k) / math.sqrt(8)
    scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -math.inf)
    expected = block.attend(torch.einsum("bhts,bshe->bthe", scores.softmax(-1), v).reshape(2, 5, 32))
    rotation = model._make_rotation(torch.device("cpu"))[:, :5]
    torch.testing.assert_close(block._attention(x_BTD, rotation), expected, rtol=1e-6, atol=1e-7)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=30)
def test_rotary_scores_depend_on_the_distance_alone(a: int, b: int, shift: int) -> None:
    model = small(context=64)
    rotation = model._make_rotation(torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=generator)

    def score(i: int, j: int) -> float:
        return (rotate(q, rotation[:, i : i + 1]) * rotate(k, rotation[:, j : j + 1])).sum().item()

    assert score(a, b) == pytest.approx(score(a + shift, b + shift), abs=1e-4)


def test_dropout_acts_in_training_only() -> None:
    model = small(dropout=0.5)
    ids = torch.randint(0, 50, (1, 8))
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


def test_every_parameter_gets_a_gradient() -> None:
    model = small(tied=False)
    model(torch.arange(16).unsqueeze(0)).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_a_model_made_on_the_meta_device_can_be_materialized_and_reset() -> None:
    with torch.device("meta"):
        empty = small()
    empty.to_empty(device="cpu")
    torch.manual_seed(3)
    empty.reset_parameters()
    plain = small()
    torch.manual_seed(3)
    plain.reset_parameters()
    ids = torch.randint(0, 50, (2, 16))
    assert torch.equal(empty(ids), plain(ids))
    assert empty.output.weight is empty.embedding.weight


def test_sampling_in_inference_mode_first_does_not_hinder_training() -> None:
    model = small()
    with torch.inference_mode():
        model(torch.zeros(1, 4, dtype=torch.int64))
    model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    assert model.embedding.weight.grad is not None


def test_state_holds_weights_only() -> None:
    model = small()
    model(torch.zeros(1, 4, dtype=torch.int64))
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters(remove_duplicate=False)}


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(ModelError, match="17 tokens were given where the model's context is 16"):
        small()(torch.zeros(1, 17, dtype=torch.int64))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"width": 30}, "heads must divide width, found heads=4 and width=30"),
        ({"kv_heads": 3}, "kv_heads must divide heads, found kv_heads=3 and heads=4"),
        ({"width": 36}, r"must be even for rotary positions, found 36 / 4 = 9"),
        ({"layers": 0}, "layers must be at least 1, found 0"),
        ({"feed_forward": 0}, "feed_forward must be at least 1, found 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), found 1.0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        small(**sizes)


def test_operations_are_six_a_weight_and_attention_counts_by_context() -> None:
    model = small(tied=False, feed_forward=64)
    weights = 2 * (32 * 64 + 32 * 32 + 32 * 128 + 64 * 32) + 32 * 50  # of each block, and the output projection
    assert model.flops_per_token == 6 * weights + 12 * 2 * 32 * 16
    assert small(feed_forward=64).flops_per_token == model.flops_per_token


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("decoder_1m", 0.95e6),
        ("decoder_small", 1.31e6),
        ("decoder_10m", 9.54e6),
        ("decoder_100m", 123.6e6),
        ("decoder_1b", 1.236e9),
        ("decoder_7b", 6.738e9),
    ],
)
def test_sizes_in_yaml_have_the_parameters_that_they_are_named_for(name: str, parameters: float) -> None:
    node = yaml.safe_load((MODELS / f"{name}.yaml").read_text())
    sizes = {key: value for key, value in node.items() if key not in ("_target_", "init")}
    with torch.device("meta"):
        model = Decoder(**(sizes | {"context": 1024}))
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(parameters, rel=0.01)
    assert all(p.is_meta for p in model.parameters())
