"""Tables for a terminal, the page of all tables, and plots; all from the measurements alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.schedules.experiments import EXPERIMENTS
from benchmarks.schedules.results import Data, Experiment, Finding, Table

INTRODUCTION = """# Experiments

What the published rules for batch size and learning rate do on real data: handwritten digits and the Python standard
library's source, with models small enough for two CPU cores without a GPU (one thread a run). Figures are means ± the
sample standard deviations over seeds; every arm sees the same samples in the same order from the same initial weights.
Learning rates are tuned for the baseline alone unless it says otherwise. Where a claim does not show at this size, the
table says so: that speaks about this size, not about the paper. Seconds are those of a machine that others used at the
same time.

`python -m benchmarks.schedules` measures all of it again (`--only c` one experiment). This page is written from
`benchmarks/results/schedules.json` by its `--docs`, and a test compares the two.
"""
VERDICTS = {True: "shows", False: "**does not show**", None: "–"}


def page(results: Mapping[str, Data]) -> str:
    """The page of all experiments, as Markdown."""
    return INTRODUCTION + "".join(_section(EXPERIMENTS[key], data) for key, data in sorted(results.items()))


def _section(experiment: Experiment, data: Data) -> str:
    rows = [[f.claim, f.found, VERDICTS[f.holds]] for f in experiment.findings(data)]
    parts = [
        f"## ({experiment.key}) {experiment.title}",
        f"{experiment.source}. {experiment.setting(data)} {data['seeds']} seeds, {data['seconds']} s in all.",
        markdown(experiment.table(data)),
        markdown(Table(["claim", "found", "verdict"], rows)),
        f"![({experiment.key}) {experiment.title}](plots/{experiment.key}.png)",
    ]
    return "\n" + "\n\n".join(parts) + "\n"


def markdown(table: Table) -> str:
    """A table in Markdown."""
    lines = [table.headers, ["---"] * len(table.headers), *table.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def text(experiment: Experiment, data: Data) -> str:
    """An experiment for the terminal."""
    table = experiment.table(data)
    lines = [table.headers, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.headers))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    claims = [_line(finding) for finding in experiment.findings(data)]
    return "\n".join(["", f"({experiment.key}) {experiment.title}: {experiment.source}", *rows, *claims])


def _line(finding: Finding) -> str:
    verdict = {True: "shows", False: "DOES NOT SHOW", None: "for the record"}[finding.holds]
    return f"  {verdict}: {finding.claim}: {finding.found}"


def plot(results: Mapping[str, Any], folder: Path) -> None:
    """One PNG an experiment."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    for key, data in results.items():
        figure = Figure(figsize=(5.5, 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        EXPERIMENTS[key].draw(data, figure.add_subplot())
        figure.savefig(folder / f"{key}.png", dpi=90)
