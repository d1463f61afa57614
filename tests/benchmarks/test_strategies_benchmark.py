"""The campaign of strategies: what its tables show is what was found, and the guide's are those of its last run."""

import json
import math
from itertools import product
from pathlib import Path

import pytest

from benchmarks import strategies
from benchmarks.strategies import TOLERANCE, WORLDS, Campaign, feature_log, move_log, start_log
from benchmarks.strategy_runs import APART, FEATURES, STRATEGIES, ZERO, Way, refused
from benchmarks.strategy_tables import table_of_features, tables, tables_of_moves

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "strategies.json").read_text())
WAYS = [Way(strategy, ranks) for ranks in WORLDS for strategy in (*STRATEGIES, *ZERO)]


def test_the_tables_of_the_guide_are_those_of_the_campaign() -> None:
    guide = (ROOT / "docs" / "strategies.md").read_text()
    assert tables_of_moves(RESULTS["moves"]) in guide
    assert table_of_features(RESULTS["features"]) in guide


def test_every_start_and_every_move_gave_the_same_losses() -> None:
    found = RESULTS["moves"]
    assert found["updates"] == 50
    assert list(found["starts"]) == [str(way) for way in WAYS]
    assert max(found["starts"].values()) <= TOLERANCE
    moves = {(move["start"], move["resume"]): move for move in found["moves"]}
    assert list(moves) == [(str(start), str(resume)) for start, resume in product(WAYS, WAYS)]
    assert max(move["apart"] for move in moves.values()) <= TOLERANCE
    assert all(move["same_bits"] is (True if start == resume else None) for (start, resume), move in moves.items())


def test_every_feature_gave_what_it_gives_elsewhere_or_was_refused() -> None:
    for strategy, found in RESULTS["features"]["apart"].items():
        assert list(found) == list(FEATURES)
        for feature, value in found.items():
            most = 1e-2 if feature in ("bf16", "fp16") else 1e-4
            assert (value is None) == refused(strategy, feature)
            assert value is None or value <= most, (strategy, feature)


def logs(folder: Path, losses: dict[Path, float]) -> None:
    for path, loss in losses.items():
        path.write_text(json.dumps({"3": {"train/loss": loss}, "4": {"train/loss": loss / 2}}))


@pytest.fixture
def over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    """A campaign on one rank whose runs are all there."""
    ways = [way for way in WAYS if way.ranks == 1]
    logs(tmp_path, {start_log(tmp_path, way): 1.0 for way in ways})
    logs(tmp_path, {move_log(tmp_path, *pair): 1.0 for pair in product(ways, ways)})
    moved = move_log(tmp_path, Way("fsdp", 1), Way("ddp", 1))
    logs(tmp_path, {moved: 1.0 + 2e-6, move_log(tmp_path, Way("hsdp", 1), Way("hsdp", 1)): 1.0 + 1e-9})
    cases = [*product([*ways, Way(APART, 1), Way(APART, 2)], FEATURES)]
    logs(tmp_path, {feature_log(tmp_path, *case): 1.0 for case in cases})
    monkeypatch.setattr(strategies, "spawned", lambda *_: pytest.fail("it is there already"))
    return Campaign(tmp_path, [1], 4)


def test_an_interrupted_campaign_goes_on_after_the_runs_that_are_there(over: Campaign) -> None:
    results = {"moves": over.moves(), "features": over.features()}
    found = {(move["start"], move["resume"]): move for move in results["moves"]["moves"]}
    assert len(found) == 49
    assert math.isclose(found["fsdp × 1", "ddp × 1"]["apart"], 2e-6, rel_tol=1e-3)
    assert found["hsdp × 1", "hsdp × 1"]["same_bits"] is False
    assert found["fsdp × 1", "fsdp × 1"]["same_bits"] is True
    printed = tables(results)
    assert "| fsdp × 1 | 2e-06 | same bits |" in printed
    assert "6 of 7 that stayed where they were in the same bits" in printed
    assert "| LARS | 0 | 0 | 0 | 0 | refused | refused | refused | 0 |" in printed
    assert "| noise scale | 0 | 0 | 0 | not measured |" in printed
