"""Which charts a report has, and the points that each of them draws. Drawing is left to the page, or to matplotlib."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradwire.trainer.report.metrics import Column, Floats, Integers, Metrics
from gradwire.trainer.report.thinning import thin

POINTS = 1200  # of one line, with one run; several runs share them
_FEWEST = 500
_MOST_KEYS = 60  # charts of keys that the trainer does not know
PARTS = ("computation", "exposed communication", "data", "checkpoints")


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a chart.

    Args:
        run: Place of its run.
        name: What it is of, the same for all runs.
        lines: Places in the run's metrics of the points that are drawn.
        values: Their values.
        total: How many points there are.
    """

    run: int
    name: str
    lines: Integers
    values: Floats
    total: int


@dataclass(frozen=True)
class LineChart:
    """Lines over the progress of the runs.

    Args:
        key: Names the chart, and the file of its picture.
        title: For people.
        unit: Of the values; empty for a plain number.
        lines: What it draws.
        step: Whether a value holds until the next one.
    """

    key: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    step: bool = False


@dataclass(frozen=True)
class Bars:
    """Stacked bars, one for each category.

    Args:
        key: Names the chart.
        title: For people.
        unit: Of the values.
        categories: Names of the bars.
        stacks: By name of the part, its value in each bar; None where it is unknown.
    """

    key: str
    title: str
    unit: str
    categories: tuple[str, ...]
    stacks: Mapping[str, tuple[float | None, ...]]


Select = Callable[[Metrics], Mapping[str, Column]]


@dataclass(frozen=True)
class _Kind:
    """A chart, and which columns of a run it draws."""

    key: str
    title: str
    select: Select
    unit: str = ""
    step: bool = False


def line_charts(runs: Sequence[Metrics]) -> list[LineChart]:
    """Every chart over the progress of the runs that has something to draw."""
    most = max(POINTS // max(len(runs), 1), _FEWEST)
    charts = (_chart(runs, most, kind) for kind in [*_KNOWN, *_evaluations(runs), *_others(runs)])
    return [chart for chart in charts if chart.lines]


def _chart(runs: Sequence[Metrics], most: int, kind: _Kind) -> LineChart:
    lines = [
        _line(place, name, column.finite, most)
        for place, metrics in enumerate(runs)
        for name, column in kind.select(metrics).items()
    ]
    return LineChart(kind.key, kind.title, kind.unit, tuple(line for line in lines if line.total), kind.step)


def _line(run: int, name: str, column: Column, most: int) -> Line:
    kept = thin(column.values, most)
    return Line(run, name, column.lines[kept], column.values[kept], len(column.values))


def _keys(*keys: str) -> Select:
    return lambda metrics: {key: metrics.columns[key] for key in keys if key in metrics.columns}


def _matching(prefix: str, *suffixes: str) -> Select:
    """The keys that begin and end so."""

    def select(metrics: Metrics) -> Mapping[str, Column]:
        return {
            key: column
            for key, column in metrics.columns.items()
            if key.startswith(prefix) and key.endswith(suffixes or ("",))
        }

    return select


def time_parts(metrics: Metrics) -> dict[str, Floats]:
    """Milliseconds of an update by what they were spent on, by line; NaN where the whole was not measured.

    Exposed communication is what backward's end waited for; computation is what remains.
    """
    whole = metrics.dense("time/update_ms")
    keys = ("comm/exposed_ms", "time/data_ms", "time/checkpoint_ms")
    others = [np.where(np.isnan(whole), np.nan, np.nan_to_num(metrics.dense(key))) for key in keys]
    return dict(zip(PARTS, [np.maximum(whole - sum(others), 0.0), *others], strict=True))


def _parts(metrics: Metrics) -> Mapping[str, Column]:
    parts = time_parts(metrics)
    lines = np.flatnonzero(~np.isnan(parts[PARTS[0]]))
    return {name: Column(lines, values[lines]) for name, values in parts.items() if values[lines].any()}


def mean_parts(names: Sequence[str], runs: Sequence[Metrics]) -> Bars | None:
    """Where each run's time went, a mean over all its updates that were measured; None where none was."""
    every = zip(names, runs, strict=True)
    measured = [(name, metrics) for name, metrics in every if "time/update_ms" in metrics.columns]
    if not measured:
        return None
    means = [_weighted(metrics) for _, metrics in measured]
    stacks = {part: tuple(mean[part] for mean in means) for part in PARTS if any(mean[part] for mean in means)}
    return Bars("time-mean", "Where the time went, mean of all updates", "ms", tuple(n for n, _ in measured), stacks)


def _weighted(metrics: Metrics) -> dict[str, float]:
    """Means over updates: a line stands for the updates since the one before."""
    parts = time_parts(metrics)
    lines = np.flatnonzero(~np.isnan(parts[PARTS[0]]))
    weights = np.diff(metrics.positions["update"][lines], prepend=0.0)
    weights = np.maximum(weights, 0.0) if weights.sum() > 0 else np.ones(len(lines))
    return {name: float(np.average(values[lines], weights=weights)) for name, values in parts.items()}


def _evaluations(runs: Sequence[Metrics]) -> Iterator[_Kind]:
    for key in _all_keys(runs):
        if key.startswith("eval/") and key != "eval/loss":
            yield _Kind(key, f"Evaluation: {key.removeprefix('eval/')}", _keys(key))


def _others(runs: Sequence[Metrics]) -> list[_Kind]:
    drawn = {name for metrics in runs for kind in _KNOWN for name in kind.select(metrics)}
    keys = [key for key in _all_keys(runs) if key not in drawn and not key.startswith(("eval/", *_DERIVED))]
    return [_Kind(key, key, _keys(key)) for key in keys[:_MOST_KEYS]]


def _all_keys(runs: Sequence[Metrics]) -> list[str]:
    return list(dict.fromkeys(key for metrics in runs for key in metrics.columns))


_DERIVED = ("time/", "comm/exposed_ms", "checkpoint/update", "total_updates")  # drawn as something else

_KNOWN = (
    _Kind("loss", "Loss", _keys("train/loss", "eval/loss")),
    _Kind("lr", "Learning rate", _keys("lr"), step=True),
    _Kind("batch-size", "Batch size", _keys("batch_size"), "samples", step=True),
    _Kind("noise-scale", "Gradient noise scale", _matching("noise_scale"), "samples"),
    _Kind("grad-norm", "Norm of the gradient", _keys("grad_norm")),
    _Kind("skipped", "Updates left out (gradient not finite)", _keys("skipped"), step=True),
    _Kind("throughput", "Throughput", _keys("tokens_per_second"), "tokens a second"),
    _Kind("time", "Where the time of an update went", _parts, "ms"),
    _Kind("bytes", "Bytes that a rank sends in an update", _matching("comm/", "bytes"), "bytes"),
    _Kind("error", "Relative error of compression", _matching("comm/", "/error")),
    _Kind("links", "Waiting and coding in an update", _matching("comm/", "/wait_ms", "/encode_ms", "/decode_ms"), "ms"),
)
