"""The contests between sweeps: what they run is right, and what they found is summed and judged."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sweeps import CONTESTS, Contest, Found, Round, keep, passed, summed, to_markdown
from gradwire.trainer.config import compose, instantiate, validate
from gradwire.trainer.config.sources import Sources
from gradwire.trainer.sweep.space import read, split

TRIALS = {"pruning": (30, 30), "hyperband": (28, 28), "pbt": (8, 80)}


@pytest.mark.parametrize("contest", CONTESTS, ids=lambda contest: contest.name)
def test_both_ways_are_right_and_have_the_trials_that_they_say(contest: Contest, tmp_path: Path) -> None:
    counted = []
    for way in (contest.rival, contest.contender):
        fixed, swept = split(contest.sweep(way, tmp_path, 0))
        space, mistakes = read(swept, {}, Sources())
        first = space.overrides({each.key: each.domain.examples[0] for each in space.parameters})
        section = validate(compose(["sweep=default", *fixed, *first])).config["sweep"]
        counted.append(section["trials"] or instantiate(section["sampler"]).limit(space))
        assert mistakes == []
    assert tuple(counted) == TRIALS[contest.name]


def told(folder: Path, *trials: dict[str, Any]) -> dict[str, Any]:
    """What `gradwire sweep show --json` says of trials, and the last update in their metrics."""
    for number, trial in enumerate(trials):
        trial["folder"] = str(folder / str(number))
        (folder / str(number)).mkdir()
        (folder / str(number) / "metrics.jsonl").write_text(json.dumps({"update": trial.pop("logged")}) + "\n")
    return {"best": [1], "trials": [{"parent": None, **trial} for trial in trials]}


def test_updates_are_those_that_were_computed(tmp_path: Path) -> None:
    pruned = {"update": 10, "logged": 14}
    best = {"update": 20, "logged": 20, "objectives": {"eval/loss": 1.5}, "parameters": {"x": 3}}
    assert summed(told(tmp_path, pruned, best, {"update": 30, "logged": 30, "parent": 1}), 9.0) == Found(
        1.5, {"x": 3}, 14 + 20 + (30 - 20), 9.0
    )


def rounds(contest: Contest, *losses: float, updates: int, same: bool = False) -> list[Round]:
    rival = Found(2.0, {"x": 1}, 100, 1.0)
    found = [Found(loss, {"x": 1 if same else 2}, updates, 1.0) for loss in losses]
    return [Round(contest.name, seed, rival, each) for seed, each in enumerate(found)]


def test_a_contender_has_to_be_as_good_in_the_median_and_as_cheap_as_said() -> None:
    pruning, hyperband, _ = CONTESTS
    assert passed(pruning, rounds(pruning, 1.9, 2.0, 2.4, updates=50))
    assert not passed(pruning, rounds(pruning, 1.9, 2.1, 2.4, updates=50))
    assert not passed(pruning, rounds(pruning, 1.9, 2.0, 2.4, updates=51))
    assert passed(hyperband, rounds(hyperband, 2.0, updates=40, same=True))
    assert not passed(hyperband, rounds(hyperband, 1.0, updates=40))
    assert "| hyperband | 0 | 2.0000 | 2.0000 | 100 | 40 | 0.40 | x 1, the same |" in to_markdown(
        rounds(hyperband, 2.0, updates=40, same=True)
    )


def test_a_file_keeps_other_contests(tmp_path: Path) -> None:
    pruning, hyperband, _ = CONTESTS
    keep(tmp_path / "found.json", rounds(pruning, 2.1, updates=50), {"pruning": False})
    for loss in (2.2, 2.0):
        keep(tmp_path / "found.json", rounds(hyperband, loss, updates=40, same=True), {"hyperband": True})
    told = json.loads((tmp_path / "found.json").read_text())
    assert [(each["contest"], each["contender"]["loss"]) for each in told["rounds"]] == [
        ("pruning", 2.1),
        ("hyperband", 2.0),
    ]
    assert told["passed"] == {"pruning": False, "hyperband": True}
