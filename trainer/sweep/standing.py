"""How a sweep stands: every trial with its values and its result, as tables, CSV and JSON show it."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.ledger import Ledger, rungs_of
from gradwire.trainer.sweep.objectives import history, last_update
from gradwire.trainer.sweep.population import PARENT
from gradwire.trainer.sweep.schedule import schedule
from gradwire.trainer.sweep.transfer import predicted

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


@dataclass(frozen=True)
class Standing:
    """A trial as it stands.

    Args:
        number: Its number.
        state: `complete`, `pruned` or `failed`; `running` in a controller's hands; `paused` where it has reached
            a rung and waits to go on; `open` where it waits for a controller.
        parameters: Its values.
        objectives: By metric its value; for trials that are not complete, the last value of the first run.
        constraints: By metric how far it is beyond the limit; zero or less is within.
        update: The last update that counts, or that was logged so far.
        seconds: How long its launches took; None while there is no result.
        reason: Why it failed.
        best: Whether no other trial is better.
        parent: The trial with whose checkpoint it began, in a population.
        folder: Its folder.
    """

    number: int
    state: str
    parameters: dict[str, Any]
    objectives: dict[str, float | None]
    constraints: dict[str, float]
    update: int
    seconds: float | None
    reason: str
    best: bool
    parent: int | None
    folder: str


def standings(definition: Definition, ledger: Ledger) -> list[Standing]:
    """All trials of a sweep, by number."""
    best = {trial.number for trial in ledger.best()}
    return [_standing(trial, definition, ledger, trial.number in best) for trial in ledger.trials()]


def _standing(trial: "FrozenTrial", definition: Definition, ledger: Ledger, best: bool) -> Standing:
    folder, noted = definition.trial(trial.number), trial.user_attrs
    waiting = "paused" if rungs_of(trial) else "open"
    state = _STATES.get(trial.state.name) or ("running" if folder.held() else waiting)
    return Standing(
        number=trial.number,
        state=state,
        parameters={each.key: trial.params[each.key] for each in ledger.space.parameters if each.key in trial.params},
        objectives=_objectives(trial, definition, ledger),
        constraints=dict(trial.constraints),
        update=noted.get("update", 0) if trial.state.is_finished() else max(map(last_update, folder.runs)),
        seconds=noted.get("seconds"),
        reason=noted.get("reason") or "",
        best=best,
        parent=noted.get(PARENT),
        folder=str(folder.folder),
    )


def _objectives(trial: "FrozenTrial", definition: Definition, ledger: Ledger) -> dict[str, float | None]:
    if trial.state.name == "COMPLETE":
        return dict(zip((each.metric for each in ledger.objectives), trial.values or (), strict=True))
    run, until = definition.trial(trial.number).runs[0], trial.user_attrs.get("update")
    found: dict[str, float | None] = {}
    for objective in ledger.objectives:
        values = [each.value for each in history(run, objective.metric) if until is None or each.update <= until]
        found[objective.metric] = values[-1] if values else None
    return found


def to_json(definition: Definition, ledger: Ledger) -> str:
    """The sweep as JSON; what JSON has no number for is text."""
    trials = standings(definition, ledger)
    record = {
        "sweep": str(definition.directory),
        "objectives": [asdict(each) for each in ledger.objectives],
        "parameters": {each.key: each.written for each in ledger.space.parameters},
        "planned": definition.trials(),
        "best": [each.number for each in trials if each.best],
        **_scheduled(definition, ledger),
        **_transferred(definition, ledger),
        "trials": [_strict(asdict(each)) for each in trials],
    }
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def _scheduled(definition: Definition, ledger: Ledger) -> dict[str, Any]:
    parts = [asdict(part) for part in schedule(definition, ledger)]
    return {"schedule": parts} if definition.population() is not None else {}


def _transferred(definition: Definition, ledger: Ledger) -> dict[str, Any]:
    """What `sweep.transfer` makes of the best trials, where there is one."""
    found = [(trial.number, predicted(definition, ledger.space.exact(trial.params))) for trial in ledger.best()]
    parts = [
        {"trial": trial, "rule": large.rule, "small": asdict(large.small), "large": asdict(large.large)}
        for trial, large in found
        if large is not None
    ]
    return {"transfer": parts} if parts else {}


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(each) for key, each in value.items()}
    infinite = isinstance(value, float) and (value != value or value in (float("inf"), -float("inf")))
    return str(value) if infinite else value


def to_csv(definition: Definition, ledger: Ledger) -> str:
    """The sweep as CSV, a line for each trial."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = [each.key for each in ledger.space.parameters]
    metrics = [each.metric for each in ledger.objectives]
    limited = [each.metric for each in ledger.constraints]
    beyond = [f"beyond {metric}" for metric in limited]
    writer.writerow(["trial", "state", *keys, *metrics, *beyond, "update", "seconds", "best", "reason"])
    for each in standings(definition, ledger):
        parameters = [each.parameters.get(key) for key in keys]
        values = [*each.objectives.values(), *(each.constraints.get(metric) for metric in limited)]
        rest = [each.update, each.seconds, each.best, each.reason]
        writer.writerow([each.number, each.state, *parameters, *values, *rest])
    return text.getvalue()


def rows(trials: list[Standing], ledger: Ledger) -> Iterator[list[str]]:
    """The cells of a table: number, state, values, objectives, update, seconds, and why a trial failed."""
    for each in trials:
        yield [
            f"{each.number}{'*' if each.best else ''}",
            each.state,
            *(number(each.parameters.get(parameter.key, "")) for parameter in ledger.space.parameters),
            *("" if value is None else number(value) for value in each.objectives.values()),
            str(each.update),
            "" if each.seconds is None else f"{each.seconds:.0f}",
            each.reason,
        ]


def headings(ledger: Ledger) -> list[str]:
    """What stands above the cells."""
    named = [*(each.key for each in ledger.space.parameters), *(each.metric for each in ledger.objectives)]
    return ["trial", "state", *named, "update", "seconds", ""]


def number(value: Any) -> str:
    """A value as tables show it."""
    return f"{value:.5g}" if isinstance(value, float) else f"{value}"
