"""How a sweep is shown: table, CSV, JSON, and the picture on a terminal."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from gradwire.trainer.sweep.screen import Screen, summary
from gradwire.trainer.sweep.standing import headings, rows, standings, to_csv, to_json
from tests.trainer.sweep import toy

GRID = {"_target_": "gradwire.trainer.sweep.samplers.Grid"}
HALVING = {"_target_": "gradwire.trainer.sweep.pruners.SuccessiveHalving", "first": 4, "factor": 2}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> toy.Definition:
    """A grid of five: complete, complete and better, behind, failed twice; and one that only has a number."""
    folder = tmp_path_factory.mktemp("standing")
    told = {
        "failures": 3,
        "trials": 6,
        "sampler": GRID,
        "pruner": HALVING,
        "constraints": [{"metric": "memory", "at_most": 0.9}],
    }
    found = toy.definition(folder, "+do=train,crash", "x=0.5,0.4,0.8", **told)
    assert toy.control(found) == 0
    toy.ledger_of(found).create()
    return found


def test_json_says_everything(sweep: toy.Definition) -> None:
    told = json.loads(to_json(sweep, toy.ledger_of(sweep)))
    assert told["best"] == [1] and told["planned"] == 6
    assert told["parameters"] == {"do": "train,crash", "x": "0.5,0.4,0.8"}
    trials = told["trials"]
    assert [each["state"] for each in trials] == [
        "complete",
        "complete",
        "pruned",
        "failed",
        "failed",
        "failed",
        "open",
    ]
    assert [each["update"] for each in trials] == [10, 10, 5, 4, 4, 4, 0]
    assert trials[1]["objectives"] == {"eval/loss": pytest.approx(0.11)}
    assert trials[1]["constraints"] == {"memory": pytest.approx(-0.5)}
    assert trials[2]["objectives"] == {"eval/loss": pytest.approx(0.45)}  # at the update that decided
    assert trials[3]["reason"] == "out of memory, say" and trials[6]["parameters"] == {}
    assert Path(trials[1]["folder"]) == sweep.directory / "trials" / "1"


def test_csv_has_a_line_for_each_trial(sweep: toy.Definition) -> None:
    read = list(csv.DictReader(io.StringIO(to_csv(sweep, toy.ledger_of(sweep)))))
    assert list(read[0]) == [
        "trial", "state", "do", "x", "eval/loss", "beyond memory", "update", "seconds", "best", "reason",
    ]  # fmt: skip
    assert [each["x"] for each in read] == ["0.5", "0.4", "0.8"] * 2 + [""]
    assert [each["best"] for each in read].index("True") == 1


def test_values_with_commas_quotes_and_letters_of_all_kinds_are_shown(tmp_path: Path) -> None:
    space = ["x=0.5,0.6", "+t=choice('a,b','say \"no\"','größe=1; 数\t')", "+l=[1,2],null"]
    sweep = toy.definition(tmp_path, *space, sampler=GRID, trials=3)
    ledger = toy.ledger_of(sweep)
    for _ in range(6):
        ledger.fill(ledger.create(), sweep.component("sampler"), 0)
    rows = list(csv.DictReader(io.StringIO(to_csv(sweep, ledger))))
    assert [row["t"] for row in rows] == ["a,b", "a,b", 'say "no"', 'say "no"', "größe=1; 数\t", "größe=1; 数\t"]
    assert [row["l"] for row in rows][:2] == ["[1,2]", ""] and rows[0]["eval/loss"] == ""
    assert [each["parameters"]["t"] for each in json.loads(to_json(sweep, ledger))["trials"]][::2] == [
        "a,b",
        'say "no"',
        "größe=1; 数\t",
    ]


def test_the_table_stars_the_best(sweep: toy.Definition) -> None:
    ledger = toy.ledger_of(sweep)
    table = [dict(zip(headings(ledger), cells, strict=True)) for cells in rows(standings(sweep, ledger), ledger)]
    assert [each["trial"] for each in table] == ["0", "1*", "2", "3", "4", "5", "6"]
    assert table[1]["eval/loss"] == "0.11" and table[3][""] == "out of memory, say"
    assert summary(standings(sweep, ledger), sweep, ledger).startswith(
        "6/6 trials  1 open  1 pruned  3 failed  best: trial 1"
    )


def test_a_terminal_shows_the_table_while_it_goes(sweep: toy.Definition, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    screen = Screen(sweep, toy.ledger_of(sweep))
    with screen.shown():
        screen.look()
    drawn = terminal.getvalue()
    assert drawn.count("6/6 trials") >= 2 and "1*" in drawn and "\x1b[" in drawn
