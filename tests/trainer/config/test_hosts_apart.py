"""What is refused before a worker starts where hosts train by themselves."""

from typing import Any

import pytest

from gradwire.trainer.config import ConfigError, Mistake, compose, validate
from gradwire.trainer.config.contradictions import Machine, contradictions
from gradwire.trainer.config.values import Fault

FOUR = Machine(gpus=0, processes=4, world_size=4)
APART = {"strategy": "diloco", "comm": "hierarchical", "comm.topology": "{local: 2, node: 2}"}


def config_of(*overrides: str) -> dict[str, Any]:
    """With two hosts of two ranks that train by themselves, where the overrides say nothing else."""
    given = {override.partition("=")[0] for override in overrides}
    apart = [f"{key}={value}" for key, value in APART.items() if key not in given]
    return validate(compose(["launch.processes=4", "launch.device=cpu", *apart, *overrides]), on_four).config


def on_four(config: Any, allow: tuple[str, ...]) -> list[Fault]:
    return contradictions(config, allow, FOUR)


def mistakes_of(*overrides: str) -> list[Mistake]:
    with pytest.raises(ConfigError) as caught:
        config_of(*overrides)
    return list(caught.value.mistakes)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("strategy=local_sgd",),
        ("strategy.every=12", "strategy.fragments=4", "strategy.overlap=2"),
        ("comm/codec@comm.codecs.node=int4", "precision=bf16"),
        ("comm.topology={node: 4}",),
    ],
)
def test_what_goes_together(overrides: tuple[str, ...]) -> None:
    config_of(*overrides)


@pytest.mark.parametrize(
    ("overrides", "key", "words", "suggestion"),
    [
        (("comm=native", "comm.topology=null"), "comm.topology", "one ring of all ranks", "comm=hierarchical"),
        (("comm.topology={local: 4, node: 1}",), "strategy", "and node has one", "strategy=ddp"),
        (("comm.topology=detect",), "strategy", "and node has one", "strategy=ddp"),
        (("strategy.every=0",), "strategy.every", "at least 1", None),
        (("strategy.fragments=3",), "strategy.fragments", "no multiple of fragments, 3", None),
        (("strategy.fragments=4", "strategy.overlap=25"), "strategy.overlap", "write at most 24", None),
        (("strategy.fragments=50",), "strategy.fragments", "a fragment has one at least", None),
        (("strategy.mix=1.0",), "strategy.mix", "less than 1", None),
        (("checkpoint.journal=interval",), "checkpoint.journal", "no reduced gradient", "checkpoint.journal=null"),
        (("comm.overlap=update",), "comm.overlap", "give strategy.overlap", "comm.overlap=backward"),
        (("scaling=adascale", "scaling.reference=8"), "scaling", "the noise scale", "strategy=ddp"),
        (
            ("batch=noise_scale", "batch.schedule.start=8", "run.length=9600 samples"),
            "batch.schedule",
            "the noise scale",
            "strategy=ddp",
        ),
        (("precision=fp16",), "precision", "loss scale", "precision=bf16"),
        (("ema=0.99",), "ema", "the outer parameters are the average", "ema=null"),
        (("sync_batchnorm=true",), "sync_batchnorm", "in every layer", "sync_batchnorm=false"),
        (("batch.size=3",), "batch.size", "each of 4 ranks needs one", None),
    ],
)
def test_a_contradiction_is_named(overrides: tuple[str, ...], key: str, words: str, suggestion: str | None) -> None:
    (mistake,) = mistakes_of(*overrides)
    assert (mistake.key, mistake.suggestion) == (key, suggestion)
    assert words in mistake.message
