"""What sharded strategies are not combined with is said before a worker starts."""

import pytest

from gradwire.trainer.config import ConfigError, compose, validate
from gradwire.trainer.config.contradictions import Machine, contradictions

FOUR = Machine(gpus=0, processes=4, world_size=4)
HOSTS = ("comm=hierarchical", "comm.topology={local: 2, node: 2}")


def told(*overrides):
    composed = compose(["launch.processes=4", "launch.device=cpu", *overrides])
    with pytest.raises(ConfigError) as caught:
        validate(composed, lambda config, allow: contradictions(config, allow, FOUR))
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (("strategy=fsdp", "comm.overlap=update"), "comm.overlap", "write backward"),
        (("strategy=fsdp", "strategy.cpu_offload=true"), "strategy.cpu_offload", "is for CUDA"),
        (("strategy=fsdp", *HOSTS, "comm/codec@comm.codecs.node=int8"), "comm.codecs.node", "strategy=hsdp has one"),
        (("strategy=hsdp", *HOSTS, "comm/codec@comm.codecs.local=int8"), "comm.codecs.local", "only node"),
        (("strategy=hsdp", *HOSTS, "comm/codec@comm.codecs.node=int4"), "comm.codecs.node", "use int8, bf16 or fp16"),
        (("strategy=hsdp",), "strategy.replicas", "comm=hierarchical"),
        (("strategy=tensor_parallel", "strategy.tensor=3"), "strategy.tensor", "must divide the 4 ranks"),
        (("strategy=tensor_parallel", "strategy.tensor=4"), "strategy.tensor", "must divide model.kv_heads=5"),
        (("strategy=tensor_parallel", "strategy.replicas=true", *HOSTS), "strategy.tensor", "not both"),
        (
            (
                "strategy=tensor_parallel",
                "batch=noise_scale",
                "batch.schedule.start=8",
                "run.length=4096 samples",
                "model.kv_heads=2",
                "model.heads=4",
                "model.width=128",
            ),
            "strategy.tensor",
            "follows it",
        ),
        (("strategy=tensor_parallel", "experiment=digits"), "strategy.tensor", "built-in decoder"),
        (("strategy=fsdp", "strategy.param_dtype=int8"), "strategy.param_dtype", "bf16"),
    ],
)
def test_a_contradiction_is_named(overrides, key, message):
    text = told(*overrides)
    assert text.startswith(key) or f"\n{key}" in text, text
    assert message in text


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy=fsdp", "strategy.param_dtype=bf16", "strategy.reduce_dtype=fp32", "ema=0.9"),
        ("strategy=fsdp", "checkpoint.journal=update"),
        ("strategy=fsdp", "batch=noise_scale", "batch.schedule.start=8", "run.length=4096 samples"),
        ("strategy=hsdp", *HOSTS, "comm/codec@comm.codecs.node=int8"),
        ("strategy=tensor_parallel", "model.heads=4", "model.kv_heads=2", "model.width=128", "clip=1.0"),
    ],
)
def test_what_goes_together_is_taken(overrides):
    composed = compose(["launch.processes=4", "launch.device=cpu", *overrides])
    assert validate(composed, lambda config, allow: contradictions(config, allow, FOUR)).config
