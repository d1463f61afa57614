import functools
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from gradwire.schedulers import Clock, Plan, Step
from gradwire.trainer.config import ConfigError, validate
from gradwire.trainer.config import compose as compose_job

CONF = Path(str(resources.files("gradwire.conf")))
PURE = ("constant", "doubling", "linear_decay", "linear_warmup", "ramp", "staged")
GROUPS = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in ("lr", "batch", "scaling")}


@functools.cache
def node(group: str, option: str, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = OmegaConf.to_container(compose(overrides=[f"+{group}={option}", *overrides]), resolve=True)
    assert isinstance(config, dict)
    return config[group]


def build(component: Any) -> Any:
    if not isinstance(component, dict):
        return component
    module, _, name = component["_target_"].rpartition(".")
    arguments = {key: build(value) for key, value in component.items() if key != "_target_"}
    return getattr(import_module(module), name)(**arguments)


def plan(lr: str, batch: str, scaling: str = "none", run_length: str = "10_000 samples", **overrides: int) -> Plan:
    sizes = node("batch", batch, *(f"batch.{key}={value}" for key, value in overrides.items()))
    return Plan(
        lr=1e-3 * build(node("lr", lr)),
        batch=sizes["size"] * build(sizes["schedule"]),
        granule=sizes["granule"],
        scaling=build(node("scaling", scaling)),
        run_length=run_length,
        context=2048,
    )


def test_the_pure_schedules_are_there() -> None:
    assert {
        "constant",
        "gpt3",
        "inverse_sqrt",
        "one_cycle",
        "polynomial",
        "quarter_cosine",
        "step",
        "warmup_constant",
        "warmup_cosine",
        "warmup_linear",
        "wsd",
    } <= set(GROUPS["lr"])
    assert {*PURE, "base", "gpt3"} <= set(GROUPS["batch"])
    assert {"linear", "none", "sqrt"} <= set(GROUPS["scaling"])


@pytest.mark.parametrize("path", sorted(path for group in GROUPS for path in (CONF / group).glob("*.yaml")), ids=str)
def test_every_file_begins_with_what_it_is(path: Path) -> None:
    first, second = path.read_text().splitlines()[:2]
    assert first.startswith("# ")
    assert first.endswith(".")
    assert not second.startswith("#")


@pytest.mark.parametrize("lr", sorted(set(GROUPS["lr"]) - {"gpt3"}))
@pytest.mark.parametrize("batch", PURE)
@pytest.mark.parametrize("scaling", ["linear", "none", "sqrt"])
def test_every_combination_makes_a_plan(lr: str, batch: str, scaling: str) -> None:
    made = plan(lr, batch, scaling)
    assert sum(step.batch_size for _, step in made.updates()) == 10_000
    assert made.largest_batch == 64


@pytest.mark.parametrize("group, option", [("lr", lr) for lr in GROUPS["lr"]] + [("batch", batch) for batch in PURE])
def test_the_default_job_runs_with_each(group: str, option: str) -> None:
    length = "300e9 tokens" if option == "gpt3" else "600 updates"
    config = validate(compose_job([f"{group}={option}", f"run.length={length}", "batch.size=1024"])).config
    named = config["batch"]["schedule"] if group == "batch" else config["lr"]
    assert named["_target_"].startswith("gradwire.schedulers.")


def test_gpt3_in_numbers() -> None:
    made = plan("gpt3", "gpt3", run_length="300e9 tokens", size=1563)
    assert made.total_samples == round(300e9 / 2048)

    def at(tokens: float) -> Step:
        return made.at(Clock(samples=round(tokens / 2048)))

    assert [at(tokens).batch_size for tokens in (0, 6e9, 12e9, 299e9)] == [16, 790, 1563, 1563]  # 32k tokens are 15.6
    assert at(375e6 / 2).lr == pytest.approx(0.5e-3, rel=1e-3)
    assert at(375e6).lr == pytest.approx(1e-3)
    assert at(375e6 + 259.625e9 / 3).lr == pytest.approx(1e-3 * (0.1 + 0.9 * 0.75))
    assert [at(260e9).lr, at(299e9).lr] == pytest.approx([1e-4, 1e-4])


def test_a_run_too_short_for_gpt3_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"Warmup takes 375000000 tokens .* lengthen the run"):
        validate(compose_job(["lr=gpt3"]))


def test_a_ramp_that_does_not_reach_the_full_batch_is_a_mistake_of_its_start() -> None:
    with pytest.raises(ConfigError, match="a ramp does not reach the full batch of 18") as refused:
        validate(compose_job(["batch=ramp", "batch.size=18"]))
    assert [mistake.key for mistake in refused.value.mistakes] == ["batch.schedule.start"]


def test_the_defaults_in_numbers() -> None:
    first = plan("warmup_linear", "constant", "none").at(next(iter(plan("constant", "constant", "none").updates()))[0])
    assert first == Step(64, pytest.approx(1e-3 * 64 / 1000))  # type: ignore[arg-type]


def test_a_batch_group_shares_size_micro_and_granule() -> None:
    sizes = node("batch", "linear_warmup", "batch.size=256")
    assert sizes == {
        "size": 256,
        "micro": "auto",
        "granule": 1,
        "schedule": {"_target_": "gradwire.schedulers.batch.LinearWarmup", "length": "10%", "start": None},
    }
