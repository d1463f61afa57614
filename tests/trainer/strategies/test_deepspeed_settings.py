"""DeepSpeed's own configuration, held against what gradwire decides."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradwire.trainer.errors import StrategyError
from gradwire.trainer.strategies.deepspeed_settings import (
    Decided,
    contradictions,
    for_engine,
    for_strategy,
    ours,
    read,
    stage_of,
    undriven,
    value_of,
)

ADAMW = {"_target_": "torch.optim.AdamW", "lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}
OURS = Decided(batch=32, micro=4, clip=1.0, optimizer=ADAMW, schedule="WarmupCosine")


@pytest.mark.parametrize(
    ("key", "value", "both"),
    [
        ("train_batch_size", 64, ("64", "batch.size, which is 32")),
        ("train_micro_batch_size_per_gpu", 8, ("8", "batch.micro, which is 4")),
        ("gradient_accumulation_steps", 2, ("2", "batch.size / batch.micro / ranks, which is 4")),
        ("gradient_clipping", 0.5, ("0.5", "clip, which is 1.0")),
        ("optimizer.params.lr", 1e-3, ("0.001", "optimizer.lr, which is 0.0003")),
        ("optimizer.params.betas", [0.9, 0.999], ("0.999", "optimizer.betas, which is [0.9, 0.95]")),
        ("optimizer.type", "Lion", ("Lion", "optimizer, which is AdamW")),
        ("scheduler.type", "WarmupLR", ("WarmupLR", "lr, which is WarmupCosine")),
        ("bf16.enabled", True, ("true", "precision, which is fp32")),
    ],
)
def test_a_contradiction_names_both_values(key: str, value: Any, both: tuple[str, str]) -> None:
    found = list(contradictions(_with(key, value), OURS, ranks=2))
    assert [where for where, _ in found] == [key if key != "scheduler.type" else "scheduler"]
    assert all(each in found[0][1] for each in both)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4},
        {"train_batch_size": "auto", "gradient_clipping": "auto", "scheduler": "auto"},
        {"gradient_clipping": 1, "optimizer": {"type": "Adam", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}}},
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "overlap_comm": True}},
        {"tensor_parallel": {"autotp_size": 1}, "fp16": {"enabled": False}},
    ],
)
def test_what_repeats_ours_or_leaves_it_open_is_taken(config: dict[str, Any]) -> None:
    split = {"zero_optimization": {"stage": 1}, **config}
    assert [*undriven(split), *contradictions(split, OURS, ranks=2)] == []


@pytest.mark.parametrize(
    "key",
    [
        "fp16.enabled",
        "hybrid_engine.enabled",
        "zero_optimization.zenflow",
        "sequence_parallel_size",
        "compile.deepcompile",
        "tensorboard.enabled",
        "wall_clock_breakdown",
    ],
)
def test_what_gradwire_cannot_drive_is_refused(key: str) -> None:
    value: Any = 2 if key.endswith("size") else True
    config = _with("zero_optimization.stage", 1)
    for section, found in _with(key, value).items():
        config[section] = {**config.get(section, {}), **found} if isinstance(found, dict) else found
    assert [where for where, _ in undriven(config)] == [key]


@pytest.mark.parametrize("device", ["offload_optimizer", "offload_param"])
def test_state_on_nvme_is_refused(device: str) -> None:
    key = f"zero_optimization.{device}.device"
    ((where, message),) = undriven({"zero_optimization": {"stage": 1, device: {"device": "nvme"}}})
    assert where == key
    assert "not in our snapshots" in message


def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_ones() -> None:
    ((key, message),) = contradictions({}, Decided(batch=20, micro=3), ranks=2)
    assert key == ""
    assert "20 samples are not micro-batches of 3 on each of 2 ranks" in message
    assert "18 or 24" in message
    assert list(contradictions({}, Decided(batch=20), ranks=2)) == []


def test_the_engine_gets_what_gradwire_does_not_decide() -> None:
    config = {
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000},
        "optimizer": {"type": "AdamW"},
        "train_batch_size": 32,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
    }
    given = for_engine(config)
    assert dict(ours(config))["gradient_clipping"] == "clip"
    assert sorted(dict(ours(config))) == ["gradient_clipping", "optimizer", "train_batch_size"]
    assert given["zero_optimization"] == config["zero_optimization"]
    assert [given[key] for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")] == [1, 1]
    assert given["gradient_clipping"] == 0.0
    assert not given.keys() & {"optimizer", "train_batch_size"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("ds.json", '{"zero_optimization": {"stage": 3}}'), ("ds.yaml", "zero_optimization:\n  stage: 3\n")],
)
def test_it_is_read_from_json_or_yaml(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert stage_of(read(str(tmp_path / name))) == 3


def test_a_file_that_cannot_be_it_is_refused(tmp_path: Path) -> None:
    for name, text, message in (
        ("broken.json", "{", "not valid JSON"),
        ("list.json", "[1]", "holds a list"),
        ("broken.yaml", "a: [", "neither valid JSON nor YAML"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(StrategyError, match=message):
            read(str(tmp_path / name))
    with pytest.raises(StrategyError, match="cannot be read"):
        read(str(tmp_path / "none.json"))


def test_what_is_left_to_others_does_not_reach_the_engine() -> None:
    config = {"bf16": {"enabled": "auto"}, "communication_data_type": "auto", "zero_optimization": {"stage": 1}}
    assert for_strategy(config) == {"bf16": {}, "zero_optimization": {"stage": 1}}


def test_a_stage_is_written_down() -> None:
    assert stage_of({}) == 0
    ((key, message),) = undriven({"zero_optimisation": {"stage": 3}})
    assert key == "zero_optimization.stage"
    assert "this says none" in message
    assert value_of({"zero_optimization": {"stage": "auto"}}, "zero_optimization.stage") is None
    ((key, _),) = undriven({"zero_optimization": {"stage": 4}})
    assert key == "zero_optimization.stage"


def _with(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    config: dict[str, Any] = json.loads(json.dumps(value))
    return config
