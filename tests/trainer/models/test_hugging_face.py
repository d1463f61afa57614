"""Exported models compute the same in transformers."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from gradwire.checkpoint import Checkpointer, State
from gradwire.checkpoint.export import export_weights, import_weights
from gradwire.trainer.checkpoint_export import export_to
from gradwire.trainer.data.chat_template import PlainTemplate
from gradwire.trainer.data.messages import Conversation
from gradwire.trainer.data.tokenizer import ByteTokenizer
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.exported_files import files_beside
from gradwire.trainer.initial_weights import load_initial_weights
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
        "data: {_target_: gradwire.trainer.data.Digits}\n"
        "model: {_target_: gradwire.trainer.models.Decoder, vocabulary: 50, context: 16, width: 48, layers: 3, "
        "heads: 4, kv_heads: 2, tied: true, init: null}\nallow_targets: []\n"
    )
    written = export_to(store, 5, run, tmp_path / "hub")
    assert [path.name for path in written] == ["config.json", "model.safetensors", "generation_config.json"]
    assert same_logits(model, tmp_path / "hub")
    export_to(store, None, None, tmp_path / "out.safetensors")
    assert torch.equal(import_weights(tmp_path / "out.safetensors")["norm.weight"], model.norm.weight)
    with pytest.raises(StateMismatchError, match="name the run directory instead"):
        export_to(store, None, None, tmp_path / "other")


def test_weights_of_transformers_are_taken_over(tmp_path: Path) -> None:
    torch.manual_seed(3)
    llama = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = LlamaConfig(
        **llama, num_key_value_heads=2, vocab_size=50, max_position_embeddings=32, tie_word_embeddings=False
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    same = {"layers": 3, "heads": 4, "kv_heads": 2, "feed_forward": 64, "tied": False}
    model = Decoder(50, 16, 48, **same).eval()
    load_initial_weights(model, str(tmp_path / "llama"))
    assert same_logits(model, tmp_path / "llama")
    theirs = HFCausalLM("llama", llama | {"num_key_value_heads": 2, "vocab_size": 50}).eval()
    load_initial_weights(theirs, str(tmp_path / "llama"))
    assert same_logits(theirs, tmp_path / "llama")
    other = Decoder(50, 16, 48, **{**same, "layers": 2, "rope_base": 5000.0, "tied": True})
    with pytest.raises(StateMismatchError) as caught:
        load_initial_weights(other, str(tmp_path / "llama"))
    for told in ("num_hidden_layers is 3 there and 2 here (model.layers=3)", "(model.rope_base=10000.0)", "tied=false"):
        assert told in str(caught.value)
    with pytest.raises(StateMismatchError, match="it is a llama, this a gpt2"):
        load_initial_weights(HFCausalLM("gpt2", {"n_embd": 32, "n_layer": 1, "n_head": 2}), str(tmp_path / "llama"))
    export_weights(model.state_dict(), tmp_path / "own.safetensors")
    again = Decoder(50, 16, 48, **same).eval()
    load_initial_weights(again, str(tmp_path / "own.safetensors"))
    assert torch.equal(again(IDS), model(IDS))


def test_the_exported_byte_tokenizer_is_the_data_s_own() -> None:
    config = {"data": {"_target_": "gradwire.trainer.data.Chat", "tokenizer": "bytes"}}
    files = files_beside(config, a_decoder(tied=True), ())
    assert json.loads(files["generation_config.json"]) == {"eos_token_id": 28, "pad_token_id": 28}
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        theirs = AutoTokenizer.from_pretrained(folder)
    text = "".join(map(chr, range(32))) + " Über 水 {}\n"
    assert theirs(text)["input_ids"] == list(text.encode())
    assert theirs.decode(list(text.encode())) == text
    assert len(theirs) == 256
    conversation = [{"role": role, "content": "é b"} for role in ("system", "user", "assistant", "user", "assistant")]
    out = theirs.apply_chat_template(conversation, return_dict=True, return_assistant_tokens_mask=True)
    ids, marks = PlainTemplate(ByteTokenizer())(Conversation("here", conversation))
    assert out["input_ids"] == ids
    assert [bool(mark) for mark in out["assistant_masks"]] == marks
    prompt = theirs.apply_chat_template(conversation[:2], add_generation_prompt=True, tokenize=False)
    assert prompt == "system: é b\nuser: é b\nassistant:"
