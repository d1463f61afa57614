"""DeepSpeed beside the rest of a configuration: what is refused before a worker starts, and what a run keeps."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gradwire.trainer.config import Composed, ConfigError, compose, validate
from gradwire.trainer.config.contradictions import Machine, contradictions
from gradwire.trainer.config.deepspeed import of_stage
from gradwire.trainer.config.values import Fault

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")

TWO = Machine(gpus=0, processes=2, world_size=2)
STAGE = "strategy.config.zero_optimization.stage"
OFFLOAD = "strategy.config.zero_optimization.offload_optimiser"
BUCKET = "strategy.config.zero_optimization.reduce_bucket_size"


def zero(*overrides: str) -> Composed:
    return compose(["strategy=deepspeed", "launch.processes=2", "launch.device=cpu", *overrides])


def found(composed: Composed, machine: Machine = TWO) -> dict[str, str]:
    """Messages by key."""

    def on_machine(config: Any, allow: tuple[str, ...]) -> list[Fault]:
        return contradictions(config, allow, machine)

    try:
        validate(composed, on_machine)
    except ConfigError as error:
        return {mistake.key: mistake.message for mistake in error.mistakes}
    return {}


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (("+strategy.config.train_batch_size=64",), "strategy.config.train_batch_size", "batch.size, which is 16"),
        (("+strategy.config.gradient_clipping=2.0", "clip=1.0"), "strategy.config.gradient_clipping", "which is 1.0"),
        (("+strategy.config.scheduler.type=WarmupLR",), "strategy.config.scheduler", "WarmupLR contradicts lr"),
        (("batch.micro=5",), "batch.size", "write 10 or 20"),
        (("comm.overlap=update",), "comm.overlap", "reduces gradients itself"),
        (("comm=ring",), "comm.algorithm", "write native"),
        (("optimizer=lamb",), "optimizer", "LAMB wants them whole"),
        (("strategy.config=none.json",), "strategy.config", "cannot be read"),
        ((f"{STAGE}=null",), STAGE, "write one of them"),
        ((f"+{OFFLOAD}.device=cpu",), OFFLOAD, "did you mean offload_optimizer?"),
        ((f"+{BUCKET}=-1",), BUCKET, "DeepSpeed says: Input should be greater"),
    ],
)
def test_a_contradiction_is_named(overrides: tuple[str, ...], key: str, message: str) -> None:
    mistakes = found(zero(*overrides))
    assert list(mistakes) == [key]
    assert message in mistakes[key]


def test_stage_0_has_the_journal_and_codecs() -> None:
    rest = ("checkpoint.journal=update", "comm=ring", "comm/codec@comm.codecs.ring=int8")
    composed = zero(f"{STAGE}=0", *rest)
    assert found(composed) == {}
    strategy = validate(composed, lambda config, allow: contradictions(config, allow, TWO)).config["strategy"]
    assert of_stage(strategy) == {"_target_": "gradwire.trainer.strategies.DataParallel"}


def test_the_smallest_micro_batch_is_not_looked_for_on_gpus() -> None:
    machine = Machine(gpus=2, processes=2, world_size=2)
    assert list(found(zero("batch.micro=auto", "launch.device=auto"), machine)) == ["batch.micro"]


def test_a_run_keeps_what_the_file_holds(tmp_path: Path) -> None:
    settings = {"zero_optimization": {"stage": 2}, "train_batch_size": 16, "wall_clock_breakdown": False}
    (tmp_path / "ds.json").write_text(json.dumps(settings))
    composed = zero(f"strategy.config={tmp_path / 'ds.json'}")
    config = validate(composed, lambda config, allow: contradictions(config, allow, TWO)).config
    assert config["strategy"]["config"] == settings
    del settings["train_batch_size"]  # which is ours to decide
    assert of_stage(config["strategy"]) == {"_target_": "gradwire.trainer.strategies.DeepSpeed", "config": settings}
