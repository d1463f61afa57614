"""Population-based training: who goes on from whose checkpoint, with which values."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gradwire.trainer.sweep.errors import NoResultError
from gradwire.trainer.sweep.ledger import Ledger
from gradwire.trainer.sweep.population import Pbt, Population, lineage, unfit_for_generations
from gradwire.trainer.sweep.result import Result
from gradwire.trainer.sweep.space import Space
from tests.trainer.sweep.test_samplers import ledger, space

SPACE = ("x=tag(log, interval(1e-3, 1))", "n=range(0, 5)", "kind=a,b")


def grown(book: Ledger, sampler: Pbt, trials: int, of: Callable[[Mapping[str, Any]], float | None]) -> Ledger:
    """So many members, each with its loss; None is a failure."""
    for number in range(len(book.trials()), trials):
        assert book.create() == number
        value = of(book.fill(number, sampler, seed=3))
        state, values = ("failed", []) if value is None else ("complete", [value])
        book.close(number, Result(state, values, [], 1, 0.0, "it broke" if value is None else ""))  # type: ignore[arg-type]
    return book


def unit(searched: Space, key: str, value: Any) -> float:
    return next(each for each in searched.parameters if each.key == key).domain.unit(value)


def test_parts_of_the_run_end_at_equal_shares_and_wait_for_the_generation_before() -> None:
    four = Population(size=4, generations=3, keeps=False)
    assert [four.until(number) for number in (0, 3, 4, 8, 11)] == [1 / 3, 1 / 3, 2 / 3, None, None]
    assert list(four.before(3)) == [] and list(four.before(6)) == [0, 1, 2, 3]
    assert list(four.outlived(7)) == [] and list(four.outlived(8)) == [0, 1, 2, 3]
    assert four.unfit(None) is None and four.unfit(8) is None and "no whole generations of 4" in str(four.unfit(10))
    assert list(Population(4, 3, keeps=True).outlived(8)) == []


def test_the_worst_go_on_from_the_best_with_values_a_step_away(tmp_path: Path) -> None:
    searched, sampler = space(*SPACE), Pbt(population=8, generations=3, spread=0.1, resampled=0.0)
    book = grown(ledger(tmp_path, searched, "minimize"), sampler, 16, lambda v: float(v["x"]))
    first, second = book.trials()[:8], book.trials()[8:]
    ranked = [trial.number for trial in sorted(first, key=lambda trial: float(trial.value or 0.0))]
    for member, trial in enumerate(second):
        parent = first[trial.user_attrs["parent"]]
        if member not in ranked[6:]:
            assert parent.number == member and trial.params == parent.params
            continue
        assert parent.number in ranked[:2]
        moved = unit(searched, "x", trial.params["x"]) - unit(searched, "x", parent.params["x"])
        edge = unit(searched, "x", trial.params["x"]) in (0, 1)
        assert abs(moved) == pytest.approx(0.1) or (edge and abs(moved) < 0.1)
        assert abs(trial.params["n"] - parent.params["n"]) <= 1 and trial.params["kind"] == parent.params["kind"]
    assert [each.number for each in lineage(second[ranked[7]], book.trials())] == [
        second[ranked[7]].user_attrs["parent"],
        8 + ranked[7],
    ]


def test_every_choice_is_a_function_of_seed_generation_and_member(tmp_path: Path) -> None:
    sampler = Pbt(population=4, generations=4, resampled=0.5)

    def loss(values: Mapping[str, Any]) -> float:
        return float(values["x"] + values["n"])

    whole = grown(ledger(tmp_path / "whole", space(*SPACE), "maximize"), sampler, 16, loss)
    grown(ledger(tmp_path / "parts", space(*SPACE), "maximize"), sampler, 6, loss)
    parts = grown(ledger(tmp_path / "parts", space(*SPACE), "maximize"), sampler, 16, loss)
    assert [trial.params for trial in parts.trials()] == [trial.params for trial in whole.trials()]
    assert whole.best()[0].number in range(12, 16)  # not one that is only on its way
    assert len({str(trial.params) for trial in whole.trials()}) > 4


def test_members_that_failed_are_replaced_and_a_generation_without_any_other_is_an_error(tmp_path: Path) -> None:
    sampler = Pbt(population=3, generations=3, replaced=0.34)
    book = grown(ledger(tmp_path, space("kind=a,b", *SPACE[:1]), "minimize"), sampler, 3, lambda v: float(v["x"]))
    worst = max(book.trials(), key=lambda trial: float(trial.value or 0.0)).number
    grown(book, sampler, 5, lambda v: None)
    grown(book, sampler, 6, lambda v: 1.0)
    grown(book, sampler, 9, lambda v: None)
    assert book.trials()[3 + worst].user_attrs["parent"] != worst
    assert [trial.user_attrs["parent"] for trial in book.trials()[6:]] == [5, 5, 5]
    book.create()
    with pytest.raises(NoResultError, match=r"all 3 members of generation 2 failed.*it broke"):
        book.fill(9, sampler, seed=3)


@pytest.mark.parametrize(
    ("swept", "checkpoint", "length", "reason"),
    [
        ("model.dropout=0.1,0.2", {}, "10 updates", None),
        ("batch.size=8,16", {}, "3 epochs", None),
        ("batch.size=8,16", {}, "10 updates", "batch.size is swept and run.length counts updates"),
        ("run.length=10 updates,20 updates", {}, "10 updates", "run.length is swept"),
        ("x=1,2", {"url": "s3://bucket"}, "10 updates", "copy each other's checkpoints in the sweep's folder"),
        ("x=1,2", {"tiers": ["memory"]}, "10 updates", "copy each other's checkpoints in the sweep's folder"),
        ("optimizer=sgd,adamw", {}, "10 updates", "cannot go on from a checkpoint of another optimizer"),
    ],
)
def test_what_cannot_go_on_from_another_member_is_refused(
    swept: str, checkpoint: dict[str, Any], length: str, reason: str | None
) -> None:
    config = {"checkpoint": {"url": None, "tiers": [], **checkpoint}, "run": {"length": length}}
    found = unfit_for_generations({"pruner": None}, space(swept), config)
    assert (found is None and reason is None) or reason in str(found)
    assert "replaced, not ended" in str(unfit_for_generations({"pruner": {}}, space(swept), config))
    assert "ranked by one objective" in str(Pbt().misfit(space(swept), 2))
