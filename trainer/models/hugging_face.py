"""What a model's weights are called in a Hugging Face folder, and the config.json that goes with them."""

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from gradwire.checkpoint.export import HuggingFace, Rows
from gradwire.trainer.models.decoder import Block, Decoder
from gradwire.trainer.models.errors import ModelError
from gradwire.trainer.models.hf_causal_lm import HFCausalLM


def hugging_face_layout(model: nn.Module) -> HuggingFace:
    """The layout of a model; the meta device is enough for it.

    The built-in decoder is written as a Llama (`LlamaForCausalLM`), which computes the same; a model of transformers as
    what it is.

    Raises:
        ModelError: Hugging Face's libraries have no such model.
    """
    if isinstance(model, Decoder):
        return _llama(model)
    if isinstance(model, HFCausalLM):
        return _own(model)
    raise ModelError(
        f"{type(model).__name__} has no Hugging Face layout, only Decoder and HFCausalLM have: export OUT.safetensors"
    )


def differences(model: nn.Module, config: Mapping[str, Any]) -> list[str]:
    """Where a folder's config.json describes another model than this one, for people; shapes of weights tell the rest.

    Args:
        model: One that has a layout.
        config: What config.json says.
    """
    if isinstance(model, HFCausalLM):
        inner: Any = model.model
        kind = inner.config.model_type
        return [] if config.get("model_type") == kind else [f"it is a {config.get('model_type')}, this a {kind}"]
    assert isinstance(model, Decoder), "another has no layout"
    if config.get("model_type") != "llama":
        return [f"it is a {config.get('model_type')}, and the built-in decoder takes the weights of a llama only"]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found = {**config, "rope_theta": rope.get("rope_theta", config.get("rope_theta"))}
    own = _llama_config(model)
    keys = {**_KEYS, **dict.fromkeys(("hidden_act", "rms_norm_eps", "attention_bias", "mlp_bias"), "")}
    odd = [name for name in keys if name in found and found[name] != own[name]]
    told = [f"{name} is {found[name]} there and {own[name]} here" + _advice(keys[name], found[name]) for name in odd]
    kind = rope.get("rope_type", rope.get("type", "default"))
    return told if kind == "default" else [*told, f"its rotary positions are scaled ({kind})"]


_KEYS = {  # of a Llama's configuration, and what the decoder calls them
    "vocab_size": "vocabulary",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "feed_forward",
    "rope_theta": "rope_base",
    "tie_word_embeddings": "tied",
}


def _advice(key: str, value: Any) -> str:
    return f" (model.{key}={str(value).lower() if isinstance(value, bool) else value})" if key else ""


def _llama(model: Decoder) -> HuggingFace:
    names = {"model.embed_tokens.weight": Rows("embedding.weight"), "model.norm.weight": Rows("norm.weight")}
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block), "a decoder has no others"
        names |= _llama_layer(f"model.layers.{number}", f"blocks.{number}", block)
    if not model.tied:
        names["lm_head.weight"] = Rows("output.weight")
    tied = {"output.weight": "embedding.weight"} if model.tied else {}
    return HuggingFace(names, _llama_config(model), tied)


def _llama_layer(theirs: str, ours: str, block: Block) -> dict[str, Rows]:
    head, part = block.head_width, block.part_width
    queries = block.heads // block.kv_heads * head  # of the heads that share a key
    group = queries + 2 * head
    return {
        f"{theirs}.input_layernorm.weight": Rows(f"{ours}.attention_norm.weight"),
        f"{theirs}.self_attn.q_proj.weight": Rows(f"{ours}.grouped_qkv.weight", 0, queries, group),
        f"{theirs}.self_attn.k_proj.weight": Rows(f"{ours}.grouped_qkv.weight", queries, queries + head, group),
        f"{theirs}.self_attn.v_proj.weight": Rows(f"{ours}.grouped_qkv.weight", queries + head, group, group),
        f"{theirs}.self_attn.o_proj.weight": Rows(f"{ours}.attend.weight"),
        f"{theirs}.post_attention_layernorm.weight": Rows(f"{ours}.feed_forward_norm.weight"),
        f"{theirs}.mlp.gate_proj.weight": Rows(f"{ours}.gate_up.weight", 0, part, 2 * part),
        f"{theirs}.mlp.up_proj.weight": Rows(f"{ours}.gate_up.weight", part, 2 * part, 2 * part),
        f"{theirs}.mlp.down_proj.weight": Rows(f"{ours}.down.weight"),
    }


def _llama_config(model: Decoder) -> dict[str, Any]:
    block = model.blocks[0]
    assert isinstance(block, Block), "a decoder has no others"
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.context,
        "hidden_size": model.embedding.embedding_dim,
        "intermediate_size": block.down.in_features,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": block.heads,
        "num_key_value_heads": block.kv_heads,
        "head_dim": block.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_base},
        "rope_theta": model.rope_base,  # where readers before transformers 5 look for it
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": model.tied,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
    }


def _own(model: HFCausalLM) -> HuggingFace:
    first: dict[int, str] = {}
    names: dict[str, Rows] = {}
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if first.setdefault(id(tensor), name) == name:
            names[name.removeprefix("model.")] = Rows(name)
        else:
            tied[name] = first[id(tensor)]
    inner: Any = model.model
    config = json.loads(inner.config.to_json_string())
    return HuggingFace(names, config | {"architectures": [type(inner).__name__], "use_cache": True}, tied)
