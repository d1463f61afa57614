"""Exported models compute the same in transformers."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from gradwire.checkpoint import Checkpointer, State
from gradwire.checkpoint.export import export_weights, import_weights
from gradwire.trainer.checkpoint_export import export_to
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.models import ConvNet, Decoder, HFCausalLM
from gradwire.trainer.models.errors import ModelError
from gradwire.trainer.models.hugging_face import hugging_face_layout

IDS = torch.arange(24).reshape(2, 12) * 7 % 50


def a_decoder(*, tied: bool, kv_heads: int = 2, rope_base: float = 10_000.0) -> Decoder:
    torch.manual_seed(1)
    model = Decoder(
        vocabulary=50, context=16, width=48, layers=3, heads=4, kv_heads=kv_heads, tied=tied, rope_base=rope_base
    )
    for parameter in model.parameters():  # norms too, and larger than fresh ones
        nn.init.normal_(parameter, 0.3 if parameter.dim() > 1 else 1.0, 0.3)
    return model.eval()


@torch.no_grad()
def same_logits(first: nn.Module, theirs: Path) -> bool:
    loaded = AutoModelForCausalLM.from_pretrained(theirs, local_files_only=True).eval()
    expected, found = first(IDS), loaded(input_ids=IDS).logits
    assert expected.std() > 0.1
    return torch.allclose(expected, found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("tied", "kv_heads", "rope_base"), [(True, 2, 10_000.0), (False, 4, 500_000.0)])
def test_an_exported_decoder_computes_the_same_in_transformers_and_comes_back(
    tied: bool, kv_heads: int, rope_base: float, tmp_path: Path
) -> None:
    model = a_decoder(tied=tied, kv_heads=kv_heads, rope_base=rope_base)
    with torch.device("meta"):
        described = Decoder(50, 16, 48, 3, 4, kv_heads, tied=tied, rope_base=rope_base)
    layout = hugging_face_layout(described)
    export_weights(model.state_dict(), tmp_path / "hub", layout)
    assert same_logits(model, tmp_path / "hub")
    other = Decoder(50, 16, 48, 3, 4, kv_heads, tied=tied, rope_base=rope_base)
    other.load_state_dict(import_weights(tmp_path / "hub", layout))
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 16}),
        (
            "qwen3",
            {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "vocab_size": 50,
                "max_position_embeddings": 16,
            },
        ),
    ],
)
def test_an_exported_model_of_transformers_computes_the_same(
    model_type: str, config: dict[str, int], tmp_path: Path
) -> None:
    torch.manual_seed(2)
    model = HFCausalLM(model_type, config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.1, 0.2)
    with torch.device("meta"):
        layout = hugging_face_layout(HFCausalLM(model_type, config))
    export_weights(model.state_dict(), tmp_path / "hub", layout)
    assert same_logits(model, tmp_path / "hub")
    back = import_weights(tmp_path / "hub", layout)
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, back[name]) for name, tensor in model.state_dict().items())


def test_a_model_without_such_a_layout_says_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"ConvNet has no Hugging Face layout.*OUT\.safetensors"):
        hugging_face_layout(ConvNet())


def test_a_run_is_exported_as_its_configuration_describes_the_model(tmp_path: Path) -> None:
    model = a_decoder(tied=True)
    run, store = tmp_path / "run", str(tmp_path / "run" / "checkpoints")
    Checkpointer(store).save(State({"model": model.state_dict()}), {"updates": 5})
    (run / "config.yaml").write_text(
        "model: {_target_: gradwire.trainer.models.Decoder, vocabulary: 50, context: 16, width: 48, layers: 3, "
        "heads: 4, kv_heads: 2, tied: true, init: null}\nallow_targets: []\n"
    )
    assert len(export_to(store, 5, run, tmp_path / "hub")) == 2
    assert same_logits(model, tmp_path / "hub")
    export_to(store, None, None, tmp_path / "out.safetensors")
    assert torch.equal(import_weights(tmp_path / "out.safetensors")["norm.weight"], model.norm.weight)
    with pytest.raises(StateMismatchError, match="name the run directory instead"):
        export_to(store, None, None, tmp_path / "other")
