"""The picture of `gradwire bench checkpoint`."""

from collections.abc import Mapping
from pathlib import Path

from gradwire.trainer.bench.checkpoint_rows import STEPS, TITLES, Row
from gradwire.trainer.plots import blank, save_figure


def save(path: Path, table: Mapping[str, Row]) -> None:
    """Milliseconds of each step, for each contender.

    Args:
        path: The PNG file.
        table: Rows by contender.

    Raises:
        MissingPackageError: matplotlib is not installed.
        WriteError: The file cannot be written.
    """
    figure = blank()
    steps = [step for step in STEPS if any(getattr(row, step) for row in table.values())]
    for axes, step in zip(figure.subplots(1, len(steps), sharey=True, squeeze=False)[0], steps, strict=True):
        names = list(table)[::-1]
        values = [table[name].milliseconds(step) or 0.0 for name in names]
        bars = axes.barh(names, values, color=[f"C{number % 10}" for number in range(len(table))])
        axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3, fontsize="small")
        axes.set_xlim(0, 1.2 * max(values) or 1)
        axes.set_xlabel(f"{TITLES[step]}, ms")
        axes.grid(axis="x", alpha=0.25)
    save_figure(figure, path)
