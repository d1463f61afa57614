from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.trainer.models import HFCausalLM, ModelError

LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 60,
    "max_position_embeddings": 128,
}
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60, "n_positions": 128}


@pytest.mark.parametrize(("model_type", "config"), [("llama", LLAMA), ("gpt2", GPT2)])
def test_an_architecture_by_name_gives_logits(model_type: str, config: dict[str, Any]) -> None:
    model = HFCausalLM(model_type, config)
    assert model(torch.randint(0, 60, (2, 9))).shape == (2, 9, 60)
    assert (model.vocabulary, model.context) == (60, 128)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_saved_model_gives_the_logits_that_it_gave(tmp_path: Path) -> None:
    saved = HFCausalLM("llama", LLAMA).eval()
    saved.model.save_pretrained(tmp_path)
    ids = torch.randint(0, 60, (1, 12))
    assert torch.equal(HFCausalLM(path=str(tmp_path)).eval()(ids), saved(ids))


def test_weights_saved_in_16_bits_are_trained_in_32(tmp_path: Path) -> None:
    HFCausalLM("llama", LLAMA).to(torch.bfloat16).model.save_pretrained(tmp_path)
    assert {p.dtype for p in HFCausalLM(path=str(tmp_path)).parameters()} == {torch.float32}


def test_no_cache_is_built_while_training() -> None:
    model = HFCausalLM("llama", LLAMA)
    assert model.model(input_ids=torch.zeros(1, 4, dtype=torch.int64)).past_key_values is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either model_type or path"),
        ({"model_type": "llama", "path": "x"}, "give either model_type or path"),
        ({"model_type": "lama"}, "transformers has no architecture 'lama'"),
        ({"model_type": "llama", "config": {"hiden_size": 8}}, r"no field hiden_size, did you mean hidden_size\?"),
        ({"model_type": "vit"}, "builds no causal language model of type vit"),
        ({"path": "nowhere"}, "nowhere holds no transformers model"),
        ({"path": "nowhere", "config": {"hidden_size": 8}}, "a saved model has its own configuration"),
    ],
)
def test_what_cannot_be_built_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        HFCausalLM(**arguments)
