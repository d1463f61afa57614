"""The charts of a sweep that `gradwire sweep` ran, from its ledger."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.trainer.report.document import Document
from gradwire.trainer.report.trials import Objective, Trial, Value, schedule_chart, sweep_charts

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from gradwire.trainer.sweep.definition import Definition
    from gradwire.trainer.sweep.ledger import Ledger

FILE = "sweep.json"
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
_FEWEST = 4  # complete trials that say something of a parameter's importance


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep."""
    return (folder / FILE).is_file()


def charts_of_sweep(directory: Path) -> list[Document]:
    """The charts of a sweep, whatever state it is in.

    Raises:
        SweepNotFoundError: what the folder holds is damaged.
        MissingPackageError: Optuna is not installed.
        StorageError: the storage cannot be used.
    """
    from gradwire.trainer.sweep.command import open_ledger
    from gradwire.trainer.sweep.definition import Definition

    definition = Definition.read(directory)
    ledger = open_ledger(definition)
    objectives = [Objective(each.metric, each.direction == "minimize") for each in definition.objectives]
    trials = [_trial(trial) for trial in ledger.trials()]
    charts = sweep_charts(trials, objectives, _importance(ledger.study))
    return [*charts, *_schedules(definition, ledger)]


def _schedules(definition: "Definition", ledger: "Ledger") -> list[Document]:
    """What a population tried over the run."""
    from gradwire.trainer.sweep.schedule import schedule

    population, parts = definition.population(), schedule(definition, ledger)
    if population is None or not parts:
        return []
    trials = [trial for trial in ledger.trials() if trial.state.name == "COMPLETE"]
    return [
        schedule_chart(
            key,
            [(population.since(each.number), each.params[key], f"trial {each.number}") for each in trials],
            [(part.since, part.parameters[key], f"trial {part.trial}") for part in parts]
            + [(parts[-1].until, parts[-1].parameters[key], f"trial {parts[-1].trial}")],
        )
        for key in (each.key for each in definition.space.parameters)
    ]


def _trial(trial: "FrozenTrial") -> Trial:
    """A trial with its values, or the last evaluation of one that ended early; limits that it breaks are a state."""
    values = tuple(trial.values or ())
    if not values and trial.intermediate_values:
        values = (trial.intermediate_values[max(trial.intermediate_values)],)
    state = _STATES.get(trial.state.name, "running")
    if state == "complete" and any(excess > 0 for excess in trial.constraints.values()):
        state = "infeasible"
    return Trial(trial.number, {name: _plain(value) for name, value in trial.params.items()}, values, state)


def _plain(value: Any) -> Value:
    return value if value is None or isinstance(value, float | int | str | bool) else str(value)


def _importance(study: "Study") -> Mapping[str, float] | None:
    """PED-ANOVA (Watanabe 2023, arXiv 2304.10255) of the first objective; None where it says nothing yet."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.trial import TrialState

    if len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))) < _FEWEST:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is called experimental
        try:
            found = get_param_importances(
                study, evaluator=PedAnovaImportanceEvaluator(), target=lambda trial: float(trial.values[0])
            )
        except (ValueError, RuntimeError):  # every trial has the same value, say
            return None
    return found if any(found.values()) else None
