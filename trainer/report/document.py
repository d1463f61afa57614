"""Everything that a report shows, as one JSON document. The page draws it and knows nothing else."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from gradwire.trainer.report.charts import Bars, Line, LineChart, line_charts, mean_parts
from gradwire.trainer.report.configuration import table
from gradwire.trainer.report.metrics import POSITIONS, Floats, Integers
from gradwire.trainer.report.recorded import Recorded
from gradwire.trainer.report.thinning import spread
from gradwire.trainer.report.timeline import Event, events_of

Document = dict[str, Any]
_SAMPLES = 40  # texts of a run that are shown
_LONGEST = 20_000  # characters of a text
_EVENTS = 500  # of a run, that are shown


def document_of(runs: Sequence[Recorded]) -> Document:
    """What a report on these runs shows."""
    metrics = [run.metrics for run in runs]
    charts, names = line_charts(metrics), _names(runs)
    bars = mean_parts(names, metrics)
    drawn = [
        _places([line for chart in charts for line in chart.lines if line.run == place]) for place in range(len(runs))
    ]
    origins = [_origin(run) for run in runs]
    return {
        "title": "Training report: " + ", ".join(names),
        "runs": [_run(*each) for each in zip(runs, names, drawn, origins, strict=True)],
        "charts": [*([] if bars is None else [bar_chart(bars)]), *(_line_chart(chart, drawn) for chart in charts)],
        "configuration": _configuration(runs),
    }


def _names(runs: Sequence[Recorded]) -> list[str]:
    """What tells the runs apart: their names, else their folders."""
    for names in ([run.name for run in runs], [run.folder.name for run in runs]):
        if len(set(names)) == len(names):
            return names
    return [str(run.folder) for run in runs]


def _places(lines: Sequence[Line]) -> Integers:
    """The lines of a run's metrics that are drawn somewhere."""
    return np.unique(np.concatenate([line.lines for line in lines])) if lines else np.array([], dtype=np.int64)


def _origin(run: Recorded) -> float | None:
    """When the run was first started, in seconds since 1970; None where that is unknown."""
    times = run.metrics.positions["time"]
    known = [start.began for start in run.starts[:1]] + times[~np.isnan(times)][:1].tolist()
    return min(known, default=None)


def _run(run: Recorded, name: str, drawn: Integers, origin: float | None) -> Document:
    positions = {axis: values[drawn] for axis, values in run.metrics.positions.items()}
    positions["time"] = positions["time"] - (math.nan if origin is None else origin)
    events = events_of(run)
    shown = [events[place] for place in spread(len(events), _EVENTS)] if events else []
    return {
        "name": name,
        "folder": str(run.folder),
        "facts": _facts(run, events),
        "problems": list(run.problems),
        "positions": {axis: numbers(positions[axis]) for axis in POSITIONS},
        "events": [_event(event, origin) for event in shown],
        "texts": _texts(run),
    }


def _event(event: Event, origin: float | None) -> Document:
    began, ended = (
        None if time is None or origin is None else round(time - origin, 3) for time in (event.time, event.until)
    )
    moment = None if event.time is None else datetime.fromtimestamp(event.time).astimezone().isoformat(" ", "seconds")
    return {
        "row": event.row,
        "tone": event.tone,
        "text": event.text,
        "moment": moment,
        "update": [event.update, event.last],
        "time": [began, ended],
    }


def _facts(run: Recorded, events: Sequence[Event]) -> list[tuple[str, str]]:
    """A run at a glance."""
    metrics, counts = run.metrics, _counts(events)
    spent = [event.until - event.time for event in events if event.row == "training" and event.until and event.time]
    facts = {
        "status": "running, or killed" if run.status == "running" else run.status or "unknown",
        "updates": _last(metrics.positions["update"], ",.0f"),
        "samples": _last(metrics.positions["samples"], ",.0f"),
        "tokens": _last(metrics.positions["tokens"], ",.0f"),
        "training loss, last": _of(run, "train/loss", lambda values: float(values[-1])),
        "evaluation loss, lowest": _of(run, "eval/loss", lambda values: float(values.min())),
        "tokens a second, median": _of(run, "tokens_per_second", lambda values: float(np.median(values)), ",.0f"),
        "time in training": _duration(sum(spent)) if spent else "",
        "starts": str(counts.get("training", "")),
        "snapshots": str(counts.get("snapshots", "")),
        "updates done twice": str(_twice(run) or ""),
    }
    return [(name, value) for name, value in facts.items() if value]


def _twice(run: Recorded) -> int:
    return sum((event.last or event.update) - event.update + 1 for event in events_of(run) if event.row == "lost")


def _counts(events: Sequence[Event]) -> Mapping[str, int]:
    return {row: sum(event.row == row for event in events) for row in {event.row for event in events}}


def _last(values: Floats, form: str) -> str:
    known = values[~np.isnan(values)]
    return format(known[-1], form) if len(known) else ""


def _of(run: Recorded, key: str, value: Any, form: str = ".6g") -> str:
    column = run.metrics.columns.get(key)
    return format(value(column.finite.values), form) if column is not None and len(column.finite.values) else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _texts(run: Recorded) -> list[Document]:
    found = run.metrics.texts.get("eval/sample", [])
    chosen = [found[place] for place in spread(len(found), _SAMPLES)] if found else []
    updates = run.metrics.positions["update"]
    return [{"update": int(updates[line]), "text": text[:_LONGEST], "of": len(found)} for line, text in chosen]


def _line_chart(chart: LineChart, drawn: Sequence[Integers]) -> Document:
    return {
        "kind": "lines",
        "key": chart.key,
        "title": chart.title,
        "unit": chart.unit,
        "step": chart.step,
        "lines": [
            {
                "run": line.run,
                "name": line.name,
                "at": np.searchsorted(drawn[line.run], line.lines).tolist(),
                "values": line.values.tolist(),
                "total": line.total,
            }
            for line in chart.lines
        ],
    }


def bar_chart(bars: Bars) -> Document:
    """Stacked bars as the page takes them."""
    return {
        "kind": "bars",
        "key": bars.key,
        "title": bars.title,
        "unit": bars.unit,
        "categories": list(bars.categories),
        "stacks": [{"name": name, "values": list(values)} for name, values in bars.stacks.items()],
    }


def _configuration(runs: Sequence[Recorded]) -> list[Document]:
    rows = table([run.configuration for run in runs])
    return [{"key": key, "values": list(values), "differs": differs} for key, values, differs in rows]


def numbers(values: Floats) -> list[float | int | None]:
    """Numbers as JSON has them: whole ones without a point, null for NaN and infinities."""
    return [None if not math.isfinite(v) else int(v) if v == int(v) else round(v, 3) for v in values.tolist()]
