"""Everything that a report shows, as one JSON document. The page draws it and knows nothing else."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.trainer.report.charts import Bars, Line, LineChart, line_charts, mean_parts
from gradwire.trainer.report.configuration import table
from gradwire.trainer.report.metrics import POSITIONS, Floats, Integers
from gradwire.trainer.report.recorded import Recorded
from gradwire.trainer.report.thinning import spread
from gradwire.trainer.report.timeline import ROWS, TIMELINE, Event, events_of

Document = dict[str, Any]
_SAMPLES = 40  # texts of a run that are shown
_LONGEST = 20_000  # characters of a text
_EVENTS = 200  # of a run and a kind, that are shown


def document_of(runs: Sequence[Recorded]) -> Document:
    """What a report on these runs shows."""
    metrics = [run.metrics for run in runs]
    charts, names = line_charts(metrics), _names(runs)
    bars = mean_parts(names, metrics)
    drawn = [
        _places([line for chart in charts for line in chart.lines if line.run == place]) for place in range(len(runs))
    ]
    shown = [_run(*each) for each in zip(runs, names, drawn, strict=True)]
    timeline = _timeline(shown)
    return {
        "title": "Training report: " + ", ".join(names),
        "runs": shown,
        "charts": [
            *([] if bars is None else [bar_chart(bars)]),
            *(_line_chart(chart, drawn) for chart in charts),
            *([] if timeline is None else [timeline]),
        ],
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


def _run(run: Recorded, name: str, drawn: Integers) -> Document:
    origin = _origin(run)
    positions = {axis: values[drawn] for axis, values in run.metrics.positions.items()}
    positions["time"] = positions["time"] - (math.nan if origin is None else origin)
    events = events_of(run)
    return {
        "name": name,
        "folder": _shown(run.folder),
        "facts": _facts(run, events),
        "problems": list(run.problems),
        "positions": {axis: numbers(positions[axis]) for axis in POSITIONS},
        "events": [_event(event, origin) for event in _bounded(events)],
        "happened": len(events),
        "texts": _texts(run),
    }


def _shown(folder: Path) -> str:
    """A folder as one would type it here."""
    return str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


def _timeline(runs: Sequence[Document]) -> Document | None:
    """Rows of events, for each run those that it has: over time where every event has one, else over updates."""
    events = [event for run in runs for event in run["events"]]
    if not events:
        return None
    over = "update" if any(event["time"][0] is None for event in events) else "time"
    rows = [
        {"run": place, "row": row, "name": f"{run['name']}: {name}" if len(runs) > 1 else name}
        for place, run in enumerate(runs)
        for row, name in ROWS.items()
        if any(event["row"] == row for event in run["events"])
    ]
    unit = "updates" if over == "update" else "since the first start"
    return {"kind": "timeline", "key": "timeline", "title": TIMELINE, "unit": unit, "over": over, "rows": rows}


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
        "updates done twice": str(_twice(events) or ""),
    }
    return [(name, value) for name, value in facts.items() if value]


def _bounded(events: Sequence[Event]) -> list[Event]:
    """Not too many of any kind, evenly spread, in their order."""
    kept: set[int] = set()
    for row in ROWS:
        places = [place for place, event in enumerate(events) if event.row == row]
        kept |= {places[each] for each in spread(len(places), _EVENTS)} if places else set()
    return [events[place] for place in sorted(kept)]


def _twice(events: Sequence[Event]) -> int:
    return sum((event.last or event.update) - event.update + 1 for event in events if event.row == "lost")


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
