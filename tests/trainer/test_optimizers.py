import pytest
import torch
from torch import nn

from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.optimizers import (
    Group,
    build_optimizer,
    load_named_state,
    named_state,
    parameter_groups,
    set_step,
)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2, bias=False))


def adamw(model: nn.Module, groups: tuple[Group, ...] = ()) -> torch.optim.Optimizer:
    return build_optimizer(lambda params: torch.optim.AdamW(params, lr=0.1), model, 0.1, 0.01, groups)


def settings(model: nn.Module, groups: list[dict[str, object]]) -> dict[str, tuple[object, object]]:
    names = {id(p): n for n, p in model.named_parameters()}
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}  # type: ignore[attr-defined]


def test_norms_and_biases_are_not_decayed_by_default() -> None:
    model = net()
    found = settings(model, parameter_groups(model, 0.1, 0.01))
    assert found == {
        "0.weight": (0.1, 0.01),
        "2.weight": (0.1, 0.01),
        "0.bias": (0.1, 0.0),
        "1.weight": (0.1, 0.0),
        "1.bias": (0.1, 0.0),
    }


def test_a_pattern_sets_its_own_rate_and_decay_and_the_first_match_counts() -> None:
    model = net()
    groups = [Group("2.*", lr=0.05), Group("*.weight", weight_decay=0.5)]
    found = settings(model, parameter_groups(model, 0.1, 0.01, groups))
    assert found["2.weight"] == (0.05, 0.01)
    assert found["0.weight"] == (0.1, 0.5)
    assert found["1.weight"] == (0.1, 0.5)


def test_a_group_keeps_its_ratio_when_the_plan_moves_the_rate() -> None:
    model = net()
    optimizer = adamw(model, (Group("2.*", lr=0.05),))
    set_step(optimizer, 0.01, (0.8, 0.9), None)
    rates = {group["lr"] for group in optimizer.param_groups}
    assert rates == {0.005, 0.01}
    assert all(group["betas"] == (0.8, 0.9) for group in optimizer.param_groups)


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(StateMismatchError, match=r"'blocks\.\*'"):
        parameter_groups(net(), 0.1, 0.01, [Group("blocks.*")])


def test_frozen_parameters_are_left_out() -> None:
    model = net()
    model[0].requires_grad_(False)  # type: ignore[index]
    assert "0.weight" not in settings(model, parameter_groups(model, 0.1, 0.01))


def test_state_by_name_survives_another_grouping() -> None:
    model, other = net(), net()
    optimizer, regrouped = adamw(model), adamw(other, (Group("0.*", lr=0.2), Group("2.*", lr=0.3)))
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    load_named_state(other, regrouped, named_state(model, optimizer))
    there, here = named_state(model, optimizer), named_state(other, regrouped)
    assert there.keys() == here.keys() == {name for name, _ in model.named_parameters()}
    for name, values in there.items():
        for key, value in values.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(here[name][key]))
    assert sorted(group["lr"] for group in regrouped.param_groups)[-1] == 0.3


def test_state_of_other_parameters_is_refused() -> None:
    model = net()
    with pytest.raises(StateMismatchError, match=r"3\.weight"):
        load_named_state(model, adamw(model), {"3.weight": {}})
