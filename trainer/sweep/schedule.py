"""The schedule that a population found: the values along the line of parents that leads to its best member."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.ledger import Ledger
from gradwire.trainer.sweep.population import lineage


@dataclass(frozen=True)
class Part:
    """A part of the run with values of its own.

    Args:
        trial: The member that ran it.
        since: Share of the run at which it begins.
        until: Share of the run at which it ends.
        parameters: Its values.
    """

    trial: int
    since: float
    until: float
    parameters: Mapping[str, Any]


def schedule(definition: Definition, ledger: Ledger) -> list[Part]:
    """The parts of the best member's run, in order; none where there is no population, or nothing came of it yet."""
    population, best = definition.population(), ledger.best()
    if population is None or not best:
        return []
    trials = ledger.trials()
    return [
        Part(
            each.number,
            population.since(each.number),
            population.until(each.number) or 1.0,
            ledger.space.exact(each.params),
        )
        for each in lineage(best[0], trials)
    ]


def lines(definition: Definition, ledger: Ledger) -> Iterator[str]:
    """The schedule for people, and where the model is that came of it."""
    parts = schedule(definition, ledger)
    for index, part in enumerate(parts):
        values = " ".join(definition.space.overrides(part.parameters))
        yield f"{'' if index else 'schedule':<9} {f'to {100 * part.until:.3g}%':<8} {values} (trial {part.trial})"
    if parts:
        yield f"model     gradwire evaluate {definition.trial(parts[-1].trial).runs[0]}"
