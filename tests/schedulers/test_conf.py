from importlib import import_module, resources
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from gradwire.schedulers import Plan, Step

CONF = Path(str(resources.files("gradwire.conf")))
GROUPS = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in ("lr", "batch", "scaling")}


def node(group: str, option: str, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = OmegaConf.to_container(compose(overrides=[f"+{group}={option}", *overrides]))
    assert isinstance(config, dict)
    return config[group]


def build(component: dict[str, Any]) -> Any:
    module, _, name = component["_target_"].rpartition(".")
    arguments = {key: value for key, value in component.items() if key != "_target_"}
    return getattr(import_module(module), name)(**arguments)


def plan(lr: str, batch: str, scaling: str) -> Plan:
    sizes = node("batch", batch)
    return Plan(
        lr=1e-3 * build(node("lr", lr)),
        batch=sizes["size"] * build(sizes["schedule"]),
        granule=sizes["granule"],
        scaling=build(node("scaling", scaling)),
        run_length="10_000 samples",
    )


def test_the_groups_have_the_options_that_are_documented() -> None:
    assert GROUPS == {
        "lr": ["constant", "warmup_constant", "warmup_cosine", "warmup_linear"],
        "batch": ["base", "constant", "linear_warmup"],
        "scaling": ["linear", "none", "sqrt"],
    }


@pytest.mark.parametrize("path", sorted(path for group in GROUPS for path in (CONF / group).glob("*.yaml")), ids=str)
def test_every_file_begins_with_what_it_is(path: Path) -> None:
    first, second = path.read_text().splitlines()[:2]
    assert first.startswith("# ")
    assert first.endswith(".")
    assert not second.startswith("#")


@pytest.mark.parametrize("lr", GROUPS["lr"])
@pytest.mark.parametrize("batch", ["constant", "linear_warmup"])
@pytest.mark.parametrize("scaling", GROUPS["scaling"])
def test_every_combination_makes_a_plan(lr: str, batch: str, scaling: str) -> None:
    made = plan(lr, batch, scaling)
    assert sum(step.batch_size for _, step in made.updates()) == 10_000
    assert made.largest_batch == 64


def test_the_defaults_in_numbers() -> None:
    first = plan("warmup_linear", "constant", "none").at(next(iter(plan("constant", "constant", "none").updates()))[0])
    assert first == Step(64, pytest.approx(1e-3 * 64 / 1000))  # type: ignore[arg-type]


def test_a_batch_group_shares_size_micro_and_granule() -> None:
    sizes = node("batch", "linear_warmup", "batch.size=256")
    assert sizes == {
        "size": 256,
        "micro": "auto",
        "granule": 1,
        "schedule": {"_target_": "gradwire.schedulers.batch.LinearWarmup", "length": "10%"},
    }
