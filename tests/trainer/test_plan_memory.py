"""`gradwire plan --memory`: what it counts is what a real update leaves, and what strategies share out."""

import json

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from gradwire.trainer.assemble import build_model, component
from gradwire.trainer.config import compose, validate
from gradwire.trainer.data import SampleStream, training_set
from gradwire.trainer.losses import loss_for
from gradwire.trainer.memory_of_strategies import Whole, needed, split
from gradwire.trainer.plan_memory import measure
from tests.trainer.commands import gradwire

SMALL = ["model.width=80", "model.layers=3", "data.context=32", "launch.processes=2", "launch.device=cpu"]


def configured(*overrides):
    return validate(compose([*SMALL, *overrides])).config


def really(config, samples):
    """Bytes that autograd keeps of a real pass."""
    model = build_model(config)
    data = component(config["data"], (), "workers")
    batch = SampleStream(training_set(data), 0).fetch(range(samples))
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage, storage.nbytes())
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_for(model, None)(model, batch)
    return model, sum(nbytes for _, nbytes in kept.values())


@pytest.mark.parametrize("overrides", [(), ("activation_checkpointing=true",)])
def test_activations_are_those_of_a_real_pass(overrides):
    config = configured(*overrides)
    model, kept = really(config, 4)
    found = measure(config, 4)
    assert found.activations == pytest.approx(kept, rel=0.02)
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert found.weights == found.gradients == weights
    assert found.optimizer == pytest.approx(2 * weights, rel=0.01)
    assert found.average == 0 and measure(configured("ema=0.9"), 4).average == weights
    assert found.block == max(sum(each.numel() * 4 for each in block.parameters()) for block in model.blocks)


def test_checkpointed_activations_are_fewer():
    plain, fewer = (measure(configured(f"activation_checkpointing={each}"), 4) for each in ("false", "true"))
    assert fewer.activations < 0.5 * plain.activations


def test_sharding_shares_out_what_is_kept():
    whole = Whole(weights=400, gradients=400, optimizer=800, average=0, block=40, activations=100)
    found = needed(whole, ranks=8, hosts=2, accumulates=False)
    assert found.pop("diloco") == (1600 + 3 * 400, 0, 100)
    assert found.pop("deepspeed 1") == (400 + 400 + (400 + 800) // 8, 400, 100)
    assert found.pop("deepspeed 2") == (400 + (400 + 400 + 800) // 8, 400, 100)
    assert found.pop("deepspeed 3") == (1600 // 8, 400 + 400, 100)
    assert found == {"ddp": (1600, 0, 100), "fsdp": (200, 120, 100), "hsdp": (400, 120, 100)}
    assert needed(whole, ranks=8, hosts=2, accumulates=True)["fsdp"] == (200, 480, 100)
    assert needed(whole, ranks=1, hosts=1, accumulates=True)["fsdp"] == (1600, 0, 100)


def test_neighbors_that_split_layers_keep_the_rest_each():
    whole = Whole(weights=400, gradients=400, optimizer=800, average=0, block=40, activations=100, split=300)
    left = 0.75 / 2 + 0.25
    assert split(whole, ranks=8, tensor=2, accumulates=False) == (round(1600 * left / 4), round(120 * left), 100)
    assert split(whole, ranks=2, tensor=2, accumulates=False) == (1600 * left, 0, 100)


def test_the_command_says_which_strategies_fit(tmp_path):
    heads = ("model.heads=4", "model.kv_heads=4")
    done = gradwire("plan", *SMALL, *heads, "--memory", "--json", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "plan.json").read_text())["memory"]
    zero = [f"deepspeed {stage}" for stage in (1, 2, 3)]
    assert [need["strategy"] for need in told["needs"]] == ["ddp", "fsdp", "hsdp", *zero, "diloco", "tensor_parallel"]
    assert all(need["fits"] == (need["together"] <= told["rank"]) for need in told["needs"])
    assert f"{told['needs'][0]['together'] / 2**20:,.0f}" in done.stdout and "fits" in done.stdout


def test_a_model_that_does_not_fit_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("gradwire.trainer.plan_memory.available", lambda: 2 * 2**20)
    done = gradwire("plan", *SMALL, "--memory", cwd=tmp_path)
    assert done.returncode == 0 and "does not fit" in done.stdout
    assert torch.get_default_dtype() == torch.float32


def test_an_adapter_has_gradients_and_moments_for_itself_alone():
    config = configured("adapter=lora")
    own = sum(each.numel() * 4 for each in build_model(config).parameters() if each.requires_grad)
    found = measure(config, 4)
    assert found.gradients == own < 0.2 * found.weights
    assert found.optimizer == pytest.approx(2 * own, rel=0.02)
