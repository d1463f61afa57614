"""Samplers: what they choose is a function of seed, number and results, and it gets better."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gradwire.trainer.config.sources import Sources
from gradwire.trainer.sweep.ledger import Ledger
from gradwire.trainer.sweep.objectives import Objective
from gradwire.trainer.sweep.result import Result
from gradwire.trainer.sweep.samplers import CmaEs, Gp, Grid, Quasi, Random, Sampler, Tpe
from gradwire.trainer.sweep.space import Space, read

SPACE = ("x=interval(0, 1)", "y=tag(log, interval(1e-3, 1))", "n=range(1, 9)", "kind=a,b")


def space(*texts: str) -> Space:
    found, mistakes = read(texts, {}, Sources())
    assert mistakes == []
    return found


def ledger(folder: Path, searched: Space, *directions: str) -> Ledger:
    folder.mkdir(exist_ok=True)
    objectives = [Objective(metric=f"m{i}", direction=each) for i, each in enumerate(directions)]  # type: ignore[arg-type]
    return Ledger.open(folder, None, "study", searched, objectives, [])


def loss(values: Mapping[str, Any]) -> float:
    return float((values["x"] - 0.7) ** 2 + abs(values["n"] - 3) / 10 + (values["kind"] == "b"))


def searched(
    book: Ledger, sampler: Sampler, trials: int, seed: int, of: Callable[..., float] = loss
) -> list[dict[str, Any]]:
    """The values of so many trials, of which the even ones are asked for twice, as after a kill."""
    found = []
    for number in range(len(book.trials()), trials):
        assert book.create() == number
        values = book.fill(number, sampler, seed)
        if number % 2 == 0:
            assert book.fill(number, sampler, seed) == values
        book.close(number, Result("complete", [of(values)] * len(book.objectives), [], 1, 0.0))
        found.append(values)
    return found


@pytest.mark.parametrize("sampler", [Random(), Quasi(), Tpe(startup=4), Gp(startup=4), CmaEs(population=4)])
def test_a_sweep_in_two_parts_asks_what_one_in_one_part_asks(tmp_path: Path, sampler: Sampler) -> None:
    whole = searched(ledger(tmp_path / "whole", space(*SPACE), "minimize"), sampler, 10, seed=3)
    parts = searched(ledger(tmp_path / "parts", space(*SPACE), "minimize"), sampler, 7, seed=3)
    parts += searched(ledger(tmp_path / "parts", space(*SPACE), "minimize"), sampler, 10, seed=3)
    other = searched(ledger(tmp_path / "other", space(*SPACE), "minimize"), sampler, 3, seed=4)
    assert parts == whole and other != whole[:3]
    assert all(0 <= each["x"] <= 1 and 1e-3 <= each["y"] <= 1 and each["n"] in range(1, 9) for each in whole)


@pytest.mark.parametrize("sampler", [Tpe(startup=5), CmaEs(population=5)])
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_samplers_that_learn_come_closer_than_chance(tmp_path: Path, sampler: Sampler, direction: str) -> None:
    sign = 1 if direction == "minimize" else -1

    def best(sampler: Sampler, name: str) -> float:
        book = ledger(tmp_path / name, space("x=interval(0, 1)", "y=interval(0, 1)"), direction)
        found = searched(book, sampler, 40, 0, lambda v: sign * ((v["x"] - 0.7) ** 2 + (v["y"] - 0.2) ** 2))
        assert book.best()[0].params == min(found, key=lambda v: (v["x"] - 0.7) ** 2 + (v["y"] - 0.2) ** 2)
        return sum((v["x"] - 0.7) ** 2 + (v["y"] - 0.2) ** 2 for v in found[-10:]) / 10

    assert best(sampler, "learning") < best(Random(), "chance") / 2


def test_quasi_random_points_are_more_even_than_chance(tmp_path: Path) -> None:
    values = searched(ledger(tmp_path, space("x=interval(0, 1)"), "minimize"), Quasi(), 16, 0, lambda v: 0.0)
    assert sorted(int(each["x"] * 16) for each in values) == list(range(16))


def test_a_grid_ends_and_needs_values_that_can_be_counted(tmp_path: Path) -> None:
    counted = space("n=range(1, 3)", "kind=a,b")
    assert Grid().limit(counted) == 4 and Grid().misfit(counted, 1) is None
    assert "x has no end of values" in str(Grid().misfit(space("x=interval(0, 1)", "n=1,2"), 1))
    found = searched(ledger(tmp_path, counted, "minimize"), Grid(), 4, 0, lambda v: 0.0)
    assert [(each["n"], each["kind"]) for each in found] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_a_shuffled_grid_is_the_same_points_in_the_seeds_order(tmp_path: Path) -> None:
    def order(seed: int) -> list[int]:
        book = ledger(tmp_path / str(seed), space("n=range(1, 10)"), "minimize")
        return [each["n"] for each in searched(book, Grid(shuffle=True), 9, seed, lambda v: 0.0)]

    assert sorted(order(3)) == sorted(order(4)) == list(range(1, 10))
    assert len({tuple(range(1, 10)), tuple(order(5)), tuple(order(6))}) == 3


def test_cma_es_says_what_it_cannot_do() -> None:
    assert "one objective" in str(CmaEs().misfit(space("x=interval(0, 1)"), 2))
    assert "no parameter here has an order" in str(CmaEs().misfit(space("kind=a,b"), 1))


@pytest.mark.parametrize("sampler", [Tpe(startup=2), Gp(startup=2)])
def test_several_objectives(tmp_path: Path, sampler: Sampler) -> None:
    book = ledger(tmp_path, space("x=interval(0, 1)"), "minimize", "maximize")
    assert len(searched(book, sampler, 5, 0, lambda v: v["x"])) == 5
    assert [trial.number for trial in book.best()] == list(range(5))  # each is better in one and worse in the other
