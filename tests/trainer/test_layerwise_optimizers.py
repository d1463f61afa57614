"""LARS and LAMB against the papers' formulas in float64, layer by layer and number by number."""

import copy
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.trainer.lamb import LAMB
from gradwire.trainer.lars import LARS
from gradwire.trainer.optimizers import load_named_state, named_state, set_step

RATES = [0.5, 0.9, 0.2, 0.7, 0.1]  # a schedule: LARS's momentum holds rates of earlier updates
Rows = list[list[float]]


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Conv1d(3, 2, 1)).to(dtype)


def gradients(model: nn.Module, update: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(update)
    return [torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype) for p in model.parameters()]


def train(model: nn.Module, optimizer: Optimizer, updates: range = range(5)) -> None:
    for update in updates:
        for parameter, gradient in zip(model.parameters(), gradients(model, update), strict=True):
            parameter.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = RATES[update]
        optimizer.step()


def lars(model: nn.Module, decay: float = 0.01) -> LARS:
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return LARS(groups, lr=0.5, momentum=0.9, trust_coefficient=0.02)


def lamb(model: nn.Module, decay: float = 0.01) -> LAMB:
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return LAMB(groups, lr=0.5, betas=(0.9, 0.99), eps=1e-6)


def norm(values: list[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values))


def flat(tensors: list[Tensor]) -> Rows:
    return [tensor.detach().double().flatten().tolist() for tensor in tensors]


def lars_by_hand(model: nn.Module, decay: float = 0.01) -> Rows:
    """You, Gitman & Ginsburg 2017, algorithm 1, in Python's floats."""
    layered = [p.dim() > 1 for p in model.parameters()]
    weights = flat(list(model.parameters()))
    velocity = [[0.0] * len(w) for w in weights]
    for update, rate in enumerate(RATES):
        for layer, gradient in enumerate(flat(gradients(model, update))):
            w, beta = weights[layer], decay if layered[layer] else 0.0
            local = 0.02 * norm(w) / (norm(gradient) + beta * norm(w)) if layered[layer] else 1.0
            step = [rate * local * (g + beta * x) for g, x in zip(gradient, w, strict=True)]
            velocity[layer] = [0.9 * v + s for v, s in zip(velocity[layer], step, strict=True)]
            weights[layer] = [x - v for x, v in zip(w, velocity[layer], strict=True)]
    return weights


def lamb_by_hand(model: nn.Module, decay: float = 0.01) -> Rows:
    """You et al. 2020, algorithm 2 with φ(z) = z, in Python's floats."""
    layered = [p.dim() > 1 for p in model.parameters()]
    weights = flat(list(model.parameters()))
    m, v = [[0.0] * len(w) for w in weights], [[0.0] * len(w) for w in weights]
    for update, rate in enumerate(RATES):
        for layer, gradient in enumerate(flat(gradients(model, update))):
            w, lam = weights[layer], decay if layered[layer] else 0.0
            m[layer] = [0.9 * a + 0.1 * g for a, g in zip(m[layer], gradient, strict=True)]
            v[layer] = [0.99 * a + 0.01 * g * g for a, g in zip(v[layer], gradient, strict=True)]
            first = [a / (1 - 0.9 ** (update + 1)) for a in m[layer]]
            second = [a / (1 - 0.99 ** (update + 1)) for a in v[layer]]
            r = [a / (math.sqrt(b) + 1e-6) + lam * x for a, b, x in zip(first, second, w, strict=True)]
            ratio = norm(w) / norm(r) if layered[layer] else 1.0
            weights[layer] = [x - rate * ratio * a for x, a in zip(w, r, strict=True)]
    return weights


@pytest.mark.parametrize(("make", "by_hand"), [(lars, lars_by_hand), (lamb, lamb_by_hand)])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-13), (torch.float32, 2e-5)])
def test_five_updates_are_the_papers(make, by_hand, dtype, error) -> None:
    model = net(dtype)
    expected = by_hand(net(dtype))
    before = flat(list(model.parameters()))
    train(model, make(model))
    for found, wanted, start in zip(flat(list(model.parameters())), expected, before, strict=True):
        assert found == pytest.approx(wanted, rel=error, abs=error)
        assert found != pytest.approx(start, abs=1e-3)


@pytest.mark.parametrize("make", [lars, lamb])
def test_the_step_of_a_layer_does_not_depend_on_the_size_of_its_gradient_and_that_of_a_bias_is_plain(make) -> None:
    moved = []
    for factor in (1.0, 1000.0):
        model = net(torch.float64)
        start = copy.deepcopy(model)
        for parameter, gradient in zip(model.parameters(), gradients(model, 0), strict=True):
            parameter.grad = gradient * factor
        make(model, decay=0.0).step()
        pairs = zip(model.parameters(), start.parameters(), strict=True)
        moved.append([(old - new).detach() for new, old in pairs])
    model = net(torch.float64)
    for parameter, small, large in zip(model.parameters(), *moved, strict=True):
        if parameter.dim() > 1:
            torch.testing.assert_close(small, large, rtol=1e-4, atol=0)
            share = 0.5 * (0.02 if make is lars else 1.0)
            assert (small.norm() / parameter.norm()).item() == pytest.approx(share, rel=1e-5)
    biases = [index for index, parameter in enumerate(model.parameters()) if parameter.dim() < 2]
    assert len(biases) == 4
    for index in biases:
        gradient = gradients(model, 0)[index]
        plain = 0.5 * (gradient if make is lars else gradient.sign())  # SGD's step, and Adam's first
        torch.testing.assert_close(moved[0][index], plain, rtol=1e-3, atol=0)


@pytest.mark.parametrize("make", [lars, lamb])
def test_state_dicts_continue_in_the_same_bits(make) -> None:
    whole, halves = net(), net()
    train(whole, make(whole))
    first = make(halves)
    train(halves, first, range(3))
    second = make(halves)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(halves, second, range(3, 5))
    assert all(map(torch.equal, whole.parameters(), halves.parameters()))


@pytest.mark.parametrize("make", [lars, lamb])
def test_the_state_by_name_that_snapshots_hold_continues_in_the_same_bits(make) -> None:
    whole, halves = net(), net()
    train(whole, make(whole))
    first = make(halves)
    train(halves, first, range(3))
    second = make(halves)
    load_named_state(halves, second, copy.deepcopy(named_state(halves, first)))
    train(halves, second, range(3, 5))
    assert all(map(torch.equal, whole.parameters(), halves.parameters()))


@pytest.mark.parametrize("make", [lars, lamb])
def test_gradients_are_read_and_not_written(make) -> None:
    model = net()
    train(model, make(model), range(1))
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients(model, 0), strict=True))


@pytest.mark.parametrize("make", [lars, lamb])
def test_zero_weights_zero_gradients_and_missing_ones_are_no_trouble(make) -> None:
    model = net()
    weight, bias = model[0].weight, model[2].weight
    with torch.no_grad():
        weight.zero_()
    weight.grad, bias.grad = torch.ones_like(weight), torch.zeros_like(bias)
    start = bias.detach().clone()
    optimizer = make(model, decay=0.0)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full_like(weight, -0.5))  # a ratio of 1
    assert torch.equal(bias, start)
    assert set(optimizer.state) == {weight, bias}


def test_sparse_gradients_count_as_dense_ones() -> None:
    for make in (LARS, LAMB):
        found = []
        for sparse in (False, True):
            torch.manual_seed(0)
            table = nn.Embedding(5, 2, sparse=sparse)
            table(torch.tensor([1, 3, 3])).sum().backward()
            make(table.parameters(), lr=0.1).step()
            found.append(table.weight.detach())
        assert torch.equal(*found)


def test_a_plan_sets_lambs_betas_and_epsilon() -> None:
    model = net()
    optimizer = lamb(model)
    set_step(optimizer, 0.25, (0.6, 0.996), 1e-7)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"]) == (0.25, (0.6, 0.996), 1e-7)


@pytest.mark.parametrize(
    ("make", "setting", "message"),
    [
        (LARS, {"lr": -1.0}, "lr is a number from 0 on, found -1.0"),
        (LARS, {"momentum": 1.0}, "momentum lies from 0 to below 1, found 1.0"),
        (LARS, {"trust_coefficient": math.nan}, "trust_coefficient is a number from 0 on, found nan"),
        (LAMB, {"betas": (0.9, 1.0)}, r"betas lie from 0 to below 1, found \(0.9, 1.0\)"),
        (LAMB, {"eps": -1e-8}, "eps is a number from 0 on"),
    ],
)
def test_settings_out_of_range_are_refused(make, setting, message) -> None:
    with pytest.raises(ValueError, match=message):
        make(net().parameters(), **{"lr": 0.1} | setting)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_train_runs_with_it(name: str, tmp_path: Path) -> None:
    code = "from gradwire.trainer.cli import main; main()"
    overrides = [
        f"optimizer={name}",
        f"run.dir={tmp_path / 'run'}",
        "run.length=30 updates",
        "run.log_every=1",
        "logger=none",
        *("model.width=64", "model.layers=2", "model.heads=2", "model.kv_heads=2", "data.context=32"),
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "train",
            *overrides,
            "run.log_every=1",
            "evaluation.every=null",
            "launch.processes=1",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert lines[-1]["update"] == 30
    assert losses[-1] < losses[0] - 0.3
