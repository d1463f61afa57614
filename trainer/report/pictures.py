"""The charts of a report as PNG files, for papers. matplotlib is imported where it draws, and needs no display."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.trainer.plots import blank, check_available, save_figure
from gradwire.trainer.report.document import Document

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = ("#0072b2", "#d55e00", "#00805e", "#b0568e", "#8a6d00", "#3a86b8", "#7a4fbf", "#444b54")
_TONES = {"good": "#1a7f37", "neutral": "#6b7480", "bad": "#b42318"}
_DASHES = ("-", "--", ":", "-.")
_AXES = ("samples", "update", "tokens", "time")  # the first of them that is known is what lines are drawn over
_LABELS = {"samples": "samples", "update": "updates", "tokens": "tokens", "time": "seconds since the first start"}


def save_pictures(document: Document, folder: Path) -> list[Path]:
    """Draw every chart of a document into a folder, which is made where there is none.

    Returns:
        The files, named by the charts.

    Raises:
        MissingPackageError: matplotlib is not installed.
        WriteError: a file cannot be written.
    """
    check_available()
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for chart in document["charts"]:
        figure = blank()
        _KINDS[chart["kind"]](figure, chart, document["runs"])
        figure.suptitle(_plain(chart["title"]))
        name = re.sub(r"[^\w.-]+", "-", chart["key"], flags=re.ASCII).strip(".") or "chart"
        files.append(folder / f"{name}.png")
        save_figure(figure, files[-1])
    return files


def _plain(text: str) -> str:
    """A text whose dollar signs are no formulas."""
    return text.replace("$", r"\$")


def _subplot(figure: "Figure", x: str, y: str) -> "Axes":
    axes = figure.add_subplot()
    axes.set_xlabel(_plain(x))
    axes.set_ylabel(_plain(y))
    axes.grid(alpha=0.25)
    return axes


def _lines(figure: "Figure", chart: Document, runs: Sequence[Document]) -> None:
    over = next((axis for axis in _AXES if any(_known(run["positions"][axis]) for run in runs)), "update")
    axes = _subplot(figure, _LABELS[over], chart["unit"] or chart["title"])
    names = list(dict.fromkeys(line["name"] for line in chart["lines"]))
    for line in chart["lines"]:
        positions, place = runs[line["run"]]["positions"][over], names.index(line["name"])
        points = [(positions[at], value) for at, value in zip(line["at"], line["values"], strict=True)]
        known = [point for point in points if point[0] is not None]
        several = len(runs) > 1
        axes.plot(
            [x for x, _ in known],
            [y for _, y in known],
            color=_color(line["run"] if several else place),
            linestyle=_DASHES[place % len(_DASHES)],
            linewidth=1.2,
            drawstyle="steps-post" if chart["step"] else "default",
            label=_plain(f"{runs[line['run']]['name']}: {line['name']}" if several else line["name"]),
        )
    axes.legend()


def _known(positions: Sequence[float | None]) -> bool:
    return any(position is not None for position in positions)


def _color(place: int) -> str:
    return _COLORS[place % len(_COLORS)]


def _bars(figure: "Figure", chart: Document, runs: Sequence[Document]) -> None:
    axes = _subplot(figure, chart["unit"], "")
    names = [_plain(name) for name in chart["categories"]]
    begin = [0.0] * len(names)
    for place, stack in enumerate(chart["stacks"]):
        values = [value or 0.0 for value in stack["values"]]
        axes.barh(names, values, left=begin, color=_color(place), label=stack["name"], height=0.6)
        begin = [before + value for before, value in zip(begin, values, strict=True)]
    axes.invert_yaxis()
    axes.legend()


def _points(figure: "Figure", chart: Document, runs: Sequence[Document]) -> None:
    axes = _subplot(figure, chart["x"]["name"], chart["y"]["name"])
    for place, group in enumerate(chart["groups"]):
        x, y = (_values(chart[side], [point[k] for point in group["points"]]) for k, side in enumerate("xy"))
        label = _plain(group["name"])
        if group["line"]:
            axes.plot(x, y, color=_color(place), marker=".", drawstyle="steps-post", label=label)
        else:
            axes.scatter(x, y, color=_color(place), s=22, label=label)
    for side, setter in (("x", axes.set_xscale), ("y", axes.set_yscale)):
        if chart[side]["type"] == "log":
            setter("log")
    for side, ticks in (("x", axes.set_xticks), ("y", axes.set_yticks)):
        if chart[side]["type"] == "category":
            ticks(range(len(chart[side]["categories"])), [_plain(name) for name in chart[side]["categories"]])
    axes.legend()


def _values(axis: Document, values: Sequence[Any]) -> list[float]:
    categories = axis["categories"]
    return [categories.index(str(value)) for value in values] if axis["type"] == "category" else list(values)


def _parallel(figure: "Figure", chart: Document, runs: Sequence[Document]) -> None:
    """Each axis from 0 to 1, with its own ends written beside it."""
    import math

    from matplotlib import colormaps

    axes = figure.add_subplot()
    columns = []
    for number, axis in enumerate(chart["axes"]):
        values = _values(axis, [row["values"][number] for row in chart["rows"]])
        shown = [math.log(value) for value in values] if axis["type"] == "log" else values
        low, high = min(shown), max(shown)
        columns.append([(value - low) / (high - low) if high > low else 0.5 for value in shown])
        ends = axis["categories"] or [f"{min(values):.4g}", f"{max(values):.4g}"]
        axes.text(number, -0.03, _plain(ends[0]), ha="center", va="top")
        axes.text(number, 1.03, _plain(ends[-1]), ha="center", va="bottom")
        axes.axvline(number, color="#777777", linewidth=0.8)
    for place in range(len(chart["rows"])):
        share = columns[chart["color"]][place]
        ink = colormaps["viridis"](1 - share if chart["minimize"] else share)
        axes.plot(range(len(columns)), [column[place] for column in columns], color=ink, alpha=0.8)
    axes.set_xticks(range(len(columns)), [_plain(axis["name"]) for axis in chart["axes"]])
    axes.tick_params(axis="x", pad=18, length=0)
    axes.set_yticks([])
    axes.set_frame_on(False)


def _timeline(figure: "Figure", chart: Document, runs: Sequence[Document]) -> None:
    over = chart["over"]
    axes = _subplot(figure, _LABELS[over], "")
    for place, row in enumerate(chart["rows"]):
        for event in runs[row["run"]]["events"]:
            begin, end = event[over]
            if event["row"] != row["row"] or begin is None:
                continue
            if end is None:
                axes.plot([begin], [place], "o", color=_TONES[event["tone"]])
            else:
                axes.barh(place, end - begin, left=begin, height=0.4, color=_TONES[event["tone"]])
    axes.set_yticks(range(len(chart["rows"])), [_plain(row["name"]) for row in chart["rows"]])
    axes.invert_yaxis()


_KINDS: dict[str, Callable[["Figure", Document, Sequence[Document]], None]] = {
    "lines": _lines,
    "bars": _bars,
    "points": _points,
    "parallel": _parallel,
    "timeline": _timeline,
}
