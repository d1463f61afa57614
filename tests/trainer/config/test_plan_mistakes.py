"""What a plan refuses is said once, with the key at fault and the place where it was written."""

import pytest

from gradwire.trainer.config import ConfigError, compose, validate
from gradwire.trainer.config.contradictions import Machine, contradictions
from gradwire.trainer.config.errors import Mistake
from gradwire.trainer.config.validation import Valid

SEESAW = ["batch=seesaw", "batch.schedule.start=4"]


def checked(*overrides: str) -> Valid:
    machine = Machine(gpus=0, processes=1, world_size=1)
    composed = compose(["launch.device=cpu", "launch.processes=1", *overrides])
    return validate(composed, lambda config, allow: contradictions(config, allow, machine))


def mistakes(*overrides: str) -> list[Mistake]:
    with pytest.raises(ConfigError) as refused:
        checked(*overrides)
    return list(refused.value.mistakes)


@pytest.mark.parametrize(
    ("overrides", "key", "where"),
    [
        (["lr.warmup=900 updates"], "lr.warmup", "override"),
        (["lr.warmup=3 hours"], "lr.warmup", "override"),
        (["run.length=40 updates", "lr=gpt3"], "lr.warmup", "conf/lr/gpt3.yaml:3"),
        (["lr=step", "lr.following.at=['99%']"], "lr.following.at[0]", "override"),
        (["lr=wsd", "lr.warmup=90%"], "lr.warmup", "override"),
        ([*SEESAW, "lr=constant"], "lr", "conf/lr/constant.yaml"),
        ([*SEESAW, "lr.floor=0.9"], "lr.floor", "override"),
        ([*SEESAW, "lr.warmup=30 updates"], "lr.warmup", "override"),
        ([*SEESAW, "scaling=linear"], "scaling", "conf/scaling/linear.yaml"),
        (["batch=seesaw", "batch.schedule.start=64"], "batch.schedule.start", "override"),
        (["batch=seesaw", "batch.schedule.start=0"], "batch.schedule.start", "override"),
        (["batch=ramp", "batch.schedule.start=5"], "batch.schedule.start", "override"),
        (["batch=gpt3"], "batch.schedule.length", "conf/batch/gpt3.yaml:5"),
        (["batch=linear_warmup", "batch.schedule.length=3 hours"], "batch.schedule.length", "override"),
        (["batch=staged", "batch.schedule.stages=x"], "batch.schedule.stages", "override"),
        (["batch=critical", "batch.schedule.start=4", "batch.schedule.thresholds=['10%']"],
         "batch.schedule.thresholds", "override"),
        (["scaling=adascale", "scaling.reference=64"], "scaling.reference", "override"),
        (["scaling=adascale", "scaling.reference=0"], "scaling.reference", "override"),
        (["scaling=sqrt", "scaling.adapt_betas=true", "scaling.reference=1"], "scaling.adapt_betas", "override"),
        (["run.length=10%"], "run.length", "override"),
        (["run.length=0 samples"], "run.length", "override"),
        (["run.length=1e300 samples"], "run.length", "override"),
        (["run.length=1e18 updates"], "run.length", "override"),
        (["run.length=9e18 samples", "data.context=64"], "run.length", "override"),
        ([f"batch.size={10**26}"], "batch.size", "override"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_plan_is_one_line_that_names_its_key_and_file(
    overrides: list[str], key: str, where: str
) -> None:
    found = mistakes(*overrides)
    assert [mistake.key for mistake in found] == [key], found
    assert found[0].where.startswith(where)


@pytest.mark.parametrize(
    ("overrides", "said", "odd"),
    [
        (["lr.warmup=20_000 samples"], "Warmup takes 20000 samples, but the run has only 9600 samples", "are left"),
        ([*SEESAW, "lr=constant"], "this rate never decays: take one that does", "floor"),
    ],
)
def test_texts_say_what_is_the_case(overrides: list[str], said: str, odd: str) -> None:
    [mistake] = mistakes(*overrides)
    assert said in mistake.message and odd not in mistake.message


@pytest.mark.parametrize(
    ("overrides", "rule", "instead"),
    [
        (["scaling=linear"], "scaling is Linear, which was shown for SGD, and the optimizer is AdamW", "scaling=sqrt"),
        (["scaling=adascale", "scaling.reference=4"], "scaling is AdaScale, which was shown for SGD", "scaling=sqrt"),
        (["scaling=linear", "optimizer=lamb"], "the optimizer is LAMB", "scaling=sqrt"),
        (["scaling=linear", "optimizer=sgd", "optimizer._target_=torch.optim.Adagrad", "~optimizer.momentum",
          "~optimizer.nesterov"], "the optimizer is Adagrad", "scaling=sqrt"),
        (["scaling=sqrt", "optimizer=sgd"], "scaling is SquareRoot, which was shown for Adam", "scaling=linear"),
    ],
)  # fmt: skip
def test_a_rule_for_another_kind_of_optimizer_is_noted(overrides: list[str], rule: str, instead: str) -> None:
    [note] = checked(*overrides).notes
    assert rule in note and instead in note


@pytest.mark.parametrize(
    "overrides",
    [[], ["scaling=sqrt"], ["scaling=linear", "optimizer=sgd"], ["scaling=linear", "optimizer=lars"], SEESAW],
)
def test_a_rule_for_this_kind_of_optimizer_is_not_noted(overrides: list[str]) -> None:
    assert checked(*overrides).notes == ()
