from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.schedulers.lr import WarmupCosine
from gradwire.trainer.config import ConfigError, instantiate

ALLOWED = ["tiny_components"]
LINEAR = {"_target_": "torch.nn.Linear", "in_features": 4, "out_features": 2}


def test_a_node_becomes_its_object() -> None:
    built = instantiate(LINEAR)
    assert isinstance(built, torch.nn.Linear)
    assert (built.in_features, built.out_features) == (4, 2)


def test_nodes_within_a_node_become_objects_and_values_their_types(library: Path) -> None:
    node = {"_target_": "tiny_components.Mlp", "width": 4.0, "inner": LINEAR, "shape": [3, 4], "scale": 2}
    built = instantiate(node, ALLOWED)
    assert isinstance(built.inner, torch.nn.Linear)
    assert (built.width, built.shape, built.scale) == (4, (3, 4), 2.0)
    assert type(built.width) is int
    assert type(built.scale) is float


def test_durations_reach_schedules() -> None:
    built = instantiate({"_target_": "gradwire.schedulers.lr.WarmupCosine", "warmup": "20%", "floor": 0.0})
    assert built == WarmupCosine("20%", 0.0)


def test_supplied_arguments_are_passed_where_the_signature_asks_for_them() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    node = {"_target_": "torch.optim.SGD", "lr": 0.1}
    optimizer = instantiate(node, params=parameters, device="unasked")
    assert optimizer.param_groups[0]["params"][0] is parameters[0]


@pytest.mark.parametrize(
    ("node", "key"),
    [
        ({"_target_": "os.system", "command": "true"}, "_target_"),
        ({"_target_": "torch.nn.Linear", "in_features": 4}, "out_features"),
        ({**LINEAR, "bais": True}, "bais"),
        ({**LINEAR, "in_features": "4"}, "in_features"),
        ({**LINEAR, "device": {"_target_": "torch.os.system"}}, "device._target_"),
        ({"in_features": 4}, ""),
        (3, ""),
    ],
)
def test_a_wrong_node_is_refused(node: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        instantiate(node)
    assert [mistake.key for mistake in caught.value.mistakes] == [key]


def test_a_supplied_argument_cannot_be_configured() -> None:
    with pytest.raises(ConfigError, match="given by gradwire itself"):
        instantiate({"_target_": "torch.optim.SGD", "params": []}, params=[torch.zeros(1)])


def test_a_constructors_own_error_comes_through(library: Path) -> None:
    with pytest.raises(ValueError, match="width must be even"):
        instantiate({"_target_": "tiny_components.Mlp", "width": 3, "inner": LINEAR}, ALLOWED)
