"""Strategies are interchangeable: the same losses, snapshots of each for each, every feature under each.

In processes of their own: torch keeps what it knows of meshes until a process ends.
"""

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks.strategies import (
    TOLERANCE,
    apart,
    feature_log,
    feature_runs,
    judge,
    read,
    resume_runs,
    start_log,
    start_runs,
)
from benchmarks.strategy_runs import APART, FEATURES, STRATEGIES, ZERO, Way, refused, spawned, train, unmeasured
from gradwire.trainer.config import compose, validate
from gradwire.trainer.config.contradictions import Machine, contradictions
from gradwire.trainer.config.errors import ConfigError
from tests.trainer.strategies.documented import train_documented

UPDATES = 12
WAYS = [Way(strategy, ranks) for ranks in (1, 2, 4) for strategy in STRATEGIES]
MOVES = [
    (Way("ddp", 1), Way("fsdp", 4)),
    (Way("ddp", 2), Way("fsdp", 2)),
    (Way("ddp", 4), Way("hsdp", 2)),
    (Way("fsdp", 1), Way("hsdp", 4)),
    (Way("fsdp", 2), Way("fsdp", 2)),
    (Way("fsdp", 2), Way("fsdp", 4)),
    (Way("fsdp", 4), Way("fsdp", 4)),
    (Way("fsdp", 4), Way("ddp", 1)),
    (Way("fsdp", 4), Way("fsdp", 2)),
    (Way("hsdp", 4), Way("hsdp", 4)),
    (Way("hsdp", 4), Way("ddp", 2)),
    (Way("hsdp", 2), Way("fsdp", 1)),
    (Way("tensor_parallel", 4), Way("tensor_parallel", 4)),
    (Way("tensor_parallel", 4), Way("ddp", 1)),
    (Way("ddp", 2), Way("tensor_parallel", 2)),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every way from the start, and those of MOVES that go on from them."""
    folder = tmp_path_factory.mktemp("runs")
    for size in (1, 2, 4):
        spawned(size, start_runs, str(folder), [way for way in WAYS if way.ranks == size], UPDATES)
    for size in (1, 2, 4):
        spawned(size, resume_runs, str(folder), [move for move in MOVES if move[1].ranks == size], UPDATES)
    return folder


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_losses_are_those_of_plain_data_parallelism(runs: Path, way: Way) -> None:
    logs = [read(start_log(runs, each)) for each in (way, WAYS[0])]
    assert sorted(logs[0]) == list(range(1, UPDATES + 1))
    assert logs[0][UPDATES]["train/loss"] < logs[0][1]["train/loss"] - 0.05
    assert apart(logs[0], logs[1], ["train/loss", "grad_norm"]) < TOLERANCE


@pytest.mark.parametrize(("start", "resume"), MOVES, ids=lambda way: str(way))
def test_a_run_moves_from_strategy_to_strategy(runs: Path, start: Way, resume: Way) -> None:
    move = judge(runs, start, resume, WAYS[0])
    assert move.apart < TOLERANCE
    assert move.same_bits is (True if start == resume else None)


FEATURED = [case for case in product(STRATEGIES, FEATURES) if not refused(*case)]


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    spawned(2, on_two_ranks, str(folder), [(Way(strategy, 2), feature) for strategy, feature in FEATURED])
    return folder


def on_two_ranks(rank: int, folder: str, cases: Iterable[tuple[Way, str]]) -> None:
    """The features, the commands of the page, and an adapter that hosts train by themselves, saved and resumed."""
    feature_runs(rank, folder, cases, UPDATES)
    train_documented(rank, folder, "strategies")
    way, half = Way(APART, 2), UPDATES // 2
    start = train(way, f"{folder}/apart", updates=UPDATES, save_every=half, feature="LoRA")
    resumed = train(way, f"{folder}/apart", updates=UPDATES, resume=half, save=False, feature="LoRA")
    if rank == 0:
        losses = [{update: record["train/loss"] for update, record in log.items()} for log in (start, resumed)]
        (Path(folder) / "apart.json").write_text(json.dumps(losses))


@pytest.mark.parametrize(
    ("strategy", "feature"), [case for case in FEATURED if case[0] != "ddp" and not unmeasured(*case)]
)
def test_features_work_under_every_strategy(features: Path, strategy: str, feature: str) -> None:
    logs = [read(feature_log(features, Way(each, 2), feature)) for each in (strategy, "ddp")]
    assert apart(*logs) < (1e-2 if feature in ("bf16", "fp16") else 2e-5), json.dumps(logs[0][UPDATES])


def test_ranks_that_split_layers_measure_no_noise_scale(features: Path) -> None:
    log = read(feature_log(features, Way("tensor_parallel", 2), "noise scale"))
    assert not any("noise_scale" in each for each in log.values())


def test_features_do_something(features: Path) -> None:
    def last(feature: str) -> dict[str, Any]:
        return dict(read(feature_log(features, Way("ddp", 2), feature))[UPDATES])

    assert last("noise scale")["noise_scale"] > 0
    assert last("non-finite skip")["skipped"] == 1
    assert "eval/loss" in last("moving average")
    assert last("clipping")["train/loss"] != last("plain")["train/loss"]
    assert last("LoRA")["train/loss"] > last("plain")["train/loss"]
    sizes = [each["batch_size"] for each in read(feature_log(features, Way("ddp", 2), "batch warm-up")).values()]
    assert sizes[0] < sizes[-1] == 8


def test_hosts_that_train_by_themselves_train_an_adapter_and_resume_in_the_same_bits(features: Path) -> None:
    start, resumed = json.loads((features / "apart.json").read_text())
    assert start[str(UPDATES)] < start["1"]
    assert resumed == {update: loss for update, loss in start.items() if int(update) > UPDATES // 2}


OVERRIDES = {
    **{strategy: (f"strategy={strategy}",) for strategy in STRATEGIES},
    **{name: ("strategy=deepspeed", f"strategy.config.zero_optimization.stage={name[-1]}") for name in ZERO},
    "hsdp": ("strategy=hsdp", "comm=hierarchical"),
    APART: ("strategy=diloco", "comm=hierarchical"),
}


def mistakes(strategy: str, *overrides: str) -> list[Any]:
    """What is said against a configuration on two hosts of two ranks."""
    own = ("launch.device=cpu", "launch.processes=2", "launch.hosts=2", "launch.endpoint=head:29400", "batch.micro=2")
    machine = Machine(gpus=0, processes=2, world_size=4)
    try:
        composed = compose([*own, "model.heads=4", "model.kv_heads=2", *OVERRIDES[strategy], *overrides])
        validate(composed, lambda config, allow: contradictions(config, allow, machine))
    except ConfigError as error:
        return list(error.mistakes)
    return []


KEYS = {
    "LARS": "optimizer",
    "LAMB": "optimizer",
    "moving average": "ema",
    "fp16": "precision",
    "LoRA": "strategy.tensor",
}


@pytest.mark.parametrize(("strategy", "feature"), [case for case in product(OVERRIDES, FEATURES) if refused(*case)])
def test_what_is_refused_is_refused_before_the_start(strategy: str, feature: str) -> None:
    assert [each.key for each in mistakes(strategy, *FEATURES[feature].overrides)] == [KEYS[feature]]


@pytest.mark.parametrize("strategy", OVERRIDES)
def test_what_works_is_not_refused(strategy: str) -> None:
    features = [feature for feature in FEATURES if not refused(strategy, feature)]
    exclusive = ("LARS", "LAMB", "fp16", "accumulation")  # each in the place of another one
    together = [each for feature in features if feature not in exclusive for each in FEATURES[feature].overrides]
    assert mistakes(strategy, *together) == []
