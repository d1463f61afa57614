"""Strategies are interchangeable: the same losses, snapshots of each for each, every feature under each.

In processes of their own: torch keeps what it knows of meshes until a process ends.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.strategies import TOLERANCE, apart, feature_runs, judge, read, resume_runs, start_runs
from benchmarks.strategy_runs import FEATURES, STRATEGIES, Way, spawned

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
    logs = [read(runs / f"{each.strategy}-{each.ranks}.json") for each in (way, WAYS[0])]
    assert sorted(logs[0]) == list(range(1, UPDATES + 1))
    assert logs[0][UPDATES]["train/loss"] < logs[0][1]["train/loss"] - 0.05
    assert apart(logs[0], logs[1], ["train/loss", "grad_norm"]) < TOLERANCE


@pytest.mark.parametrize(("start", "resume"), MOVES, ids=lambda way: str(way))
def test_a_run_moves_from_strategy_to_strategy(runs: Path, start: Way, resume: Way) -> None:
    move = judge(runs, start, resume, WAYS[0])
    assert move.apart < TOLERANCE
    assert move.same_bits is (True if start == resume else None)


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    spawned(2, feature_runs, str(folder), [Way(strategy, 2) for strategy in STRATEGIES], list(FEATURES), UPDATES)
    return folder


CASES = [(strategy, feature) for strategy in STRATEGIES[1:] for feature in FEATURES]


@pytest.mark.parametrize(
    ("strategy", "feature"), [case for case in CASES if case != ("tensor_parallel", "noise scale")]
)
def test_features_work_under_every_strategy(features: Path, strategy: str, feature: str) -> None:
    logs = [read(features / f"{each}-2-{feature.replace(' ', '_')}.json") for each in (strategy, "ddp")]
    assert apart(*logs) < (1e-2 if feature in ("bf16", "fp16") else 2e-5), json.dumps(logs[0][UPDATES])


def test_ranks_that_split_layers_measure_no_noise_scale(features: Path) -> None:
    assert not any("noise_scale" in each for each in read(features / "tensor_parallel-2-noise_scale.json").values())


def test_features_do_something(features: Path) -> None:
    def last(feature: str) -> dict[str, Any]:
        return dict(read(features / f"ddp-2-{feature.replace(' ', '_')}.json")[UPDATES])

    assert last("noise scale")["noise_scale"] > 0
    assert last("non-finite skip")["skipped"] == 1
    assert "eval/loss" in last("moving average")
    assert last("clipping")["train/loss"] != last("plain")["train/loss"]
    assert read(features / "ddp-2-batch_warm-up.json")[1]["batch_size"] < last("batch warm-up")["batch_size"] == 8
