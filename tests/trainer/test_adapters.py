"""Adapters on every kind of model: what is trained, sums, files of their own, and what is refused."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from peft import PeftModel
from torch import Tensor, nn

from gradwire.trainer.adapter_files import base_digest, export_adapter, load_adapter
from gradwire.trainer.adapters import DoRA, LoRA, chosen, merged, trained
from gradwire.trainer.config import compose, validate
from gradwire.trainer.config.contradictions import Machine, contradictions
from gradwire.trainer.config.errors import ConfigError
from gradwire.trainer.errors import AdapterError, MissingPackageError
from gradwire.trainer.models import Decoder, HFCausalLM

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 16,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 16}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "decoder": lambda: Decoder(50, 16, 32, 2, 4, 2),
    "llama": lambda: HFCausalLM("llama", LLAMA),
    "gpt2": lambda: HFCausalLM("gpt2", GPT2),
}
IN_BF16 = ["strategy=deepspeed", "precision=bf16", "strategy.config.bf16={enabled: true}", "launch.device=cpu"]
IDS = torch.arange(12)[None]


def made(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name]().eval()


def described(name: str) -> nn.Module:
    with torch.device("meta"):
        return MODELS[name]()


def adapted(name: str, adapter: LoRA) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model whose adapter has learned something, and its weights."""
    model = made(name)
    adapter.apply(model)
    for key, parameter in model.named_parameters():
        if ".lora_" in key:
            nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0.0, 0.2)
    return model, {key: tensor.clone() for key, tensor in model.state_dict().items()}


@pytest.mark.parametrize("kind", [LoRA, DoRA])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_sums_and_files_compute_what_the_adapter_does(name: str, kind: type[LoRA], tmp_path: Path) -> None:
    adapter = kind(rank=3, alpha=6.0)
    model, weights = adapted(name, adapter)
    expected = model(IDS)
    assert (expected - made(name)(IDS)).abs().max() > 1e-2
    export_adapter(described(name), adapter, weights, tmp_path / "alone", {"update": "1"})
    loaded = made(name)
    adapter.apply(loaded)
    load_adapter(loaded, tmp_path / "alone")
    assert torch.equal(loaded(IDS), expected)
    base = made(name)
    if isinstance(base, HFCausalLM):
        theirs = PeftModel.from_pretrained(base.model, tmp_path / "alone").eval()
        torch.testing.assert_close(theirs(input_ids=IDS).logits, expected)
    alone = made(name, seed=7)
    alone.load_state_dict(merged(described(name), adapter, weights))
    torch.testing.assert_close(alone(IDS), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", MODELS)
def test_only_the_adapter_gets_gradients(name: str) -> None:
    model, _ = adapted(name, LoRA(rank=2))
    model(IDS).sum().backward()
    assert {key for key, parameter in model.named_parameters() if parameter.grad is not None} == {
        key for key, _ in model.named_parameters() if ".lora_" in key
    }
    few, all_ = trained(model)
    assert 0 < few < 0.2 * all_


def test_fresh_adapters_change_nothing_yet() -> None:
    for adapter in (LoRA(), DoRA()):
        model = made("decoder")
        expected = model(IDS)
        adapter.apply(model)
        torch.testing.assert_close(model(IDS), expected)


def test_targets_are_patterns_and_leave_the_output_projection_out() -> None:
    names = chosen(made("decoder"), None)
    assert names == [f"blocks.{b}.{part}" for b in (0, 1) for part in ("grouped_qkv", "attend", "gate_up", "down")]
    assert chosen(made("decoder"), ["*.1.attend", "output"]) == ["blocks.1.attend", "output"]
    assert all("lm_head" not in name for name in chosen(made("llama"), None))
    with pytest.raises(AdapterError, match=r"no linear layer matches '\*\.q_proj'; names look like"):
        LoRA(targets=["*.q_proj"]).apply(made("decoder"))
    with pytest.raises(AdapterError, match="Embedding has no linear layers"):
        LoRA().apply(nn.Embedding(2, 2))


def test_an_adapter_of_another_base_or_shape_is_refused(tmp_path: Path) -> None:
    adapter = LoRA(rank=2)
    _, weights = adapted("decoder", adapter)
    export_adapter(described("decoder"), adapter, weights, tmp_path / "alone", {})
    other = made("decoder", seed=1)
    adapter.apply(other)
    with pytest.raises(AdapterError, match=r"belongs to a base with the digest \w{32}, and this model's is \w{32}"):
        load_adapter(other, tmp_path / "alone")
    wider = made("decoder")
    LoRA(rank=4).apply(wider)
    with pytest.raises(AdapterError, match="is another adapter"):
        load_adapter(wider, tmp_path / "alone")
    with pytest.raises(AdapterError, match=r"none holds no adapter_model.safetensors"):
        load_adapter(wider, Path("none"))
    with pytest.raises(AdapterError, match="the weights are of another model or adapter"):
        merged(described("llama"), adapter, weights)


def test_the_digest_is_that_of_the_base_with_or_without_an_adapter() -> None:
    _, weights = adapted("llama", LoRA())
    assert base_digest(weights) == base_digest(made("llama").state_dict())
    assert base_digest(weights) != base_digest(made("llama", seed=1).state_dict())


def test_without_peft_it_is_said_what_to_install() -> None:
    with mock.patch.dict(sys.modules, {"peft": None}), pytest.raises(MissingPackageError, match=r"gradwire\[peft\]"):
        LoRA()


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (["adapter=lora", "adapter.targets=['*.q']"], "adapter.targets", "no linear layer matches"),
        (["adapter=lora", "adapter.rnk=3"], "adapter.rnk", "no such key"),
        (["adapter=dora", "adapter.rank=0"], "adapter.rank", "at least 1"),
        (["adapter=lora", "strategy=tensor_parallel", "model.kv_heads=1"], "strategy.tensor", "are not split"),
        ([*IN_BF16, "adapter=lora"], "strategy.config.bf16.enabled", "an exported adapter would fit no base"),
    ],
)
def test_mistakes_are_found_before_the_run(overrides: list[str], key: str, message: str) -> None:
    machine = Machine(gpus=0, processes=2, world_size=2)
    with pytest.raises(ConfigError) as caught:
        validate(compose([*overrides, "launch.processes=2"]), lambda c, allow: contradictions(c, allow, machine))
    mistakes: Any = caught.value.mistakes
    assert any(mistake.key == key and message in mistake.message for mistake in mistakes), str(caught.value)
