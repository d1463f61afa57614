"""Charts of a sweep: history, parallel coordinates, importance, slices, and the Pareto front of several objectives."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.trainer.report.document import Document
from gradwire.trainer.report.errors import TrialsError

Value = float | int | str | bool | None
_LOGARITHMIC = 100  # where the largest of some positive numbers is so many times the smallest


@dataclass(frozen=True)
class Trial:
    """One trial of a sweep.

    Args:
        number: Which.
        params: What was tried.
        values: What came out, one number for each objective; empty where nothing did.
        state: `complete` where the values count; else what became of it, such as `pruned`, `failed` or `running`.
        name: What to show for it, such as its run's name; its number where empty.
    """

    number: int
    params: Mapping[str, Value]
    values: tuple[float, ...]
    state: str
    name: str = ""


@dataclass(frozen=True)
class Objective:
    """What a sweep looks for.

    Args:
        name: Such as `eval/loss`.
        minimize: Whether less is better.
    """

    name: str
    minimize: bool = True


def sweep_charts(
    trials: Sequence[Trial], objectives: Sequence[Objective], importance: Mapping[str, float] | None = None
) -> list[Document]:
    """The charts of a sweep, for `page` and `save_pictures`.

    Args:
        trials: All of them, in any state.
        objectives: At least one.
        importance: By parameter, its share in what the first objective varies by, as whoever ran the sweep found it.

    Raises:
        TrialsError: there is no objective, or a complete trial has another number of values.
    """
    if not objectives:
        raise TrialsError("a sweep needs an objective to draw, found none")
    for trial in trials:
        if trial.state == "complete" and len(trial.values) != len(objectives):
            raise TrialsError(
                f"trial {trial.number} is complete with {len(trial.values)} values, expected one for each of "
                f"{len(objectives)} objectives"
            )
    complete = [trial for trial in trials if trial.state == "complete" and all(map(math.isfinite, trial.values))]
    params = list(dict.fromkeys(name for trial in trials for name in trial.params))
    charts = [_history(trials, place, objective) for place, objective in enumerate(objectives)]
    if complete:
        charts += [_front(complete, *pair) for pair in itertools.combinations(list(enumerate(objectives)), 2)]
        charts += [_parallel(complete, params, objectives)]
    if importance:
        charts.append(_importance(importance, objectives[0]))
    if complete:
        charts += [
            _slice(complete, param, place, objective) for param in params for place, objective in enumerate(objectives)
        ]
    return charts


def sweep_document(
    title: str, trials: Sequence[Trial], objectives: Sequence[Objective], importance: Mapping[str, float] | None = None
) -> Document:
    """A report on a sweep alone. Arguments and errors as of `sweep_charts`."""
    charts = sweep_charts(trials, objectives, importance)
    return {"title": title, "runs": [], "charts": charts, "configuration": []}


def schedule_chart(
    param: str, members: Sequence[tuple[float, Value, str]], schedule: Sequence[tuple[float, Value, str]]
) -> Document:
    """What a population tried over the run: where each member began and with which value; a line is what became best.

    Args:
        param: The parameter.
        members: Shares of the run, values, and names.
        schedule: The same, of the best member and those before it, to the end of the run.
    """
    axes = _axis("share of the run", [0.0, 1.0]), _axis(param, [_plain(value) for _, value, _ in members])
    groups = [
        _group(name, [(share, _plain(value), who) for share, value, who in points], line=name == "schedule")
        for name, points in (("members", members), ("schedule", schedule))
    ]
    return _points(f"schedule-{param}", f"{param} over the run", *axes, groups)


def _name(trial: Trial) -> str:
    return trial.name or f"trial {trial.number}"


def _points(key: str, title: str, x: Document, y: Document, groups: list[Document]) -> Document:
    return {"kind": "points", "key": key, "title": title, "unit": "", "x": x, "y": y, "groups": groups}


def _group(name: str, points: list[tuple[Any, Any, str]], *, line: bool = False) -> Document:
    """Points with what they are called; a line joins them in steps."""
    return {"name": name, "points": [list(point) for point in points], "line": line}


def _history(trials: Sequence[Trial], place: int, objective: Objective) -> Document:
    """Values by number of the trial, in any state, and the best of the complete ones so far."""
    measured = (trial for trial in trials if len(trial.values) > place and math.isfinite(trial.values[place]))
    known = sorted(measured, key=lambda trial: trial.number)
    states = list(dict.fromkeys(trial.state for trial in known))
    groups = [
        _group(state, [(t.number, t.values[place], _name(t)) for t in known if t.state == state]) for state in states
    ]
    best = _best_so_far([trial for trial in known if trial.state == "complete"], place, objective)
    title = f"History of {objective.name}"
    axes = _axis("trial", [trial.number for trial in known]), _axis(objective.name, [t.values[place] for t in known])
    return _points(f"history-{objective.name}", title, *axes, [*groups, _group("best so far", best, line=True)])


def _best_so_far(trials: Sequence[Trial], place: int, objective: Objective) -> list[tuple[int, float, str]]:
    found: list[tuple[int, float, str]] = []
    for trial in trials:
        value = trial.values[place]
        if found and not _better(value, found[-1][1], objective):
            found.append((trial.number, *found[-1][1:]))
        else:
            found.append((trial.number, value, _name(trial)))
    return found


def _better(value: float, other: float, objective: Objective) -> bool:
    return value < other if objective.minimize else value > other


def pareto_front(trials: Sequence[Trial], objectives: Sequence[tuple[int, Objective]]) -> list[Trial]:
    """The trials that no other one equals or beats in all objectives and beats in one, by the first objective."""

    def rank(trial: Trial) -> tuple[float, ...]:
        return tuple(trial.values[place] if each.minimize else -trial.values[place] for place, each in objectives)

    def beaten(trial: Trial) -> bool:
        mine, others = rank(trial), (rank(other) for other in trials)
        return any(other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in others)

    return sorted((trial for trial in trials if not beaten(trial)), key=rank)


def _front(trials: Sequence[Trial], first: tuple[int, Objective], second: tuple[int, Objective]) -> Document:
    def points(chosen: Sequence[Trial]) -> list[tuple[float, float, str]]:
        return [(trial.values[first[0]], trial.values[second[0]], _name(trial)) for trial in chosen]

    front = pareto_front(trials, (first, second))
    names = {trial.number for trial in front}
    rest = [trial for trial in trials if trial.number not in names]
    x, y = (_axis(each.name, [trial.values[place] for trial in trials]) for place, each in (first, second))
    title = f"Pareto front of {first[1].name} and {second[1].name}"
    groups = [_group("others", points(rest)), _group("front", points(front), line=True)]
    return _points(f"front-{first[1].name}-{second[1].name}", title, x, y, groups)


def _parallel(trials: Sequence[Trial], params: Sequence[str], objectives: Sequence[Objective]) -> Document:
    rows = [[*(_plain(trial.params.get(param)) for param in params), *trial.values] for trial in trials]
    names = [*params, *(objective.name for objective in objectives)]
    return {
        "kind": "parallel",
        "key": "parallel",
        "title": "Parallel coordinates",
        "unit": f"colored by {objectives[0].name}",
        "axes": [_axis(name, [row[place] for row in rows]) for place, name in enumerate(names)],
        "rows": [{"name": _name(trial), "values": row} for trial, row in zip(trials, rows, strict=True)],
        "color": len(params),
        "minimize": objectives[0].minimize,
    }


def _importance(importance: Mapping[str, float], objective: Objective) -> Document:
    ranked = sorted(importance.items(), key=lambda item: -item[1])
    return {
        "kind": "bars",
        "key": "importance",
        "title": f"Importance for {objective.name}",
        "unit": "share",
        "categories": [name for name, _ in ranked],
        "stacks": [{"name": "importance", "values": [value for _, value in ranked]}],
    }


def _slice(trials: Sequence[Trial], param: str, place: int, objective: Objective) -> Document:
    known = [trial for trial in trials if param in trial.params]
    points = [(_plain(trial.params[param]), trial.values[place], _name(trial)) for trial in known]
    axes = _axis(param, [point[0] for point in points]), _axis(objective.name, [point[1] for point in points])
    return _points(f"slice-{param}-{objective.name}", f"{objective.name} by {param}", *axes, [_group("trials", points)])


def _plain(value: Value) -> float | int | str | None:
    """Numbers as they are, everything else as text."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _axis(name: str, values: Sequence[Any]) -> Document:
    """What an axis is called and how it is divided: by categories where any value is a text."""
    if any(isinstance(value, str) for value in values):
        return {"name": name, "type": "category", "categories": sorted({str(value) for value in values})}
    low, high = min(values, default=0), max(values, default=0)
    wide = low > 0 and high >= _LOGARITHMIC * low
    return {"name": name, "type": "log" if wide else "value", "categories": []}
