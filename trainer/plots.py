"""Pictures of plans and measurements, as PNG files. matplotlib is imported where it draws, and needs no display."""

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwire.trainer import named_files
from gradwire.trainer.errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradwire.trainer.plan_outline import Point

SIZE = (1280, 720)  # pixels of every picture
_DPI = 120
_BLUE, _RED, _GRAY = "#1f5fa8", "#c2452d", "#777777"


def check_available() -> None:
    """Refuse a picture before anything was done for it.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackageError("a picture (--png) needs matplotlib: pip install 'gradwire[plot]'")


def save_plan(path: Path, points: "Sequence[Point]", total_samples: int) -> None:
    """Batch size and learning rate over samples, with updates along the top.

    Args:
        path: The PNG file.
        points: Updates of the plan, in order.
        total_samples: Samples of the whole run.

    Raises:
        MissingPackageError: matplotlib is not installed.
        WriteError: the file cannot be written.
    """
    figure = blank()
    below = figure.add_subplot(2, 1, 2)
    above = figure.add_subplot(2, 1, 1, sharex=below)
    samples = [point.clock.samples for point in points] + [total_samples]
    above.step(samples, _closed([point.step.batch_size for point in points]), where="post", color=_BLUE)
    above.set_ylabel("batch size (samples)")
    below.plot(samples[:-1], [point.step.lr for point in points], color=_RED)
    below.set_ylabel("learning rate")
    below.set_xlabel("samples")
    below.set_xlim(0, total_samples)
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
    above.tick_params(labelbottom=False)
    _updates_along_the_top(above, points, total_samples)
    save_figure(figure, path)


def save_batch_size(
    path: Path, micro_batches: Sequence[int], throughput: Sequence[float], noise_scale: float | None, chosen: int
) -> None:
    """Throughput over micro-batch size and, where a noise scale was measured, updates against samples.

    Args:
        path: The PNG file.
        micro_batches: Sizes, in samples.
        throughput: Samples a second over all ranks, for each of them.
        noise_scale: In samples; None where it could not be measured.
        chosen: The recommended global batch, in samples.

    Raises:
        MissingPackageError: matplotlib is not installed.
        WriteError: the file cannot be written.
    """
    figure = blank()
    left, right = figure.subplots(1, 2)
    left.plot(micro_batches, throughput, "o-", color=_BLUE)
    left.set_xscale("log", base=2)
    left.set_ylim(bottom=0)
    left.set_xlabel("micro-batch (samples)")
    left.set_ylabel("samples a second, all ranks")
    left.grid(alpha=0.25)
    if noise_scale:
        _trade_off(right, noise_scale, chosen)
    else:
        right.set_axis_off()
        right.text(0.5, 0.5, "no noise scale was measured", ha="center", color=_GRAY)
    save_figure(figure, path)


def _trade_off(axes: "Axes", noise_scale: float, chosen: int) -> None:
    """Updates S/S_min = 1 + 𝓑/B against samples E/E_min = 1 + B/𝓑 (arXiv 1812.06162, equation 2.11)."""
    ratio = np.geomspace(1 / 16, 16, 129)  # batch over noise scale
    axes.plot(1 + 1 / ratio, 1 + ratio, color=_BLUE)
    for batch_size, color, name in ((noise_scale, _GRAY, "noise scale"), (float(chosen), _RED, "recommended")):
        here = batch_size / noise_scale
        label = f"{name}: {batch_size:,.0f} samples"
        axes.plot([1 + 1 / here], [1 + here], "o", color=color, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("updates, over the fewest possible")
    axes.set_ylabel("samples, over the fewest possible")
    axes.grid(alpha=0.25, which="both")
    axes.legend()


def _updates_along_the_top(axes: "Axes", points: "Sequence[Point]", total_samples: int) -> None:
    from matplotlib.ticker import MaxNLocator

    updates, samples = [[getattr(point.clock, name) for point in points] for name in ("updates", "samples")]
    ticks = [int(tick) for tick in MaxNLocator(8, integer=True).tick_values(0, updates[-1]) if tick <= updates[-1]]
    shown: list[tuple[float, str]] = []
    for tick, place in zip(ticks, np.interp(ticks, updates, samples), strict=True):
        if not shown or place - shown[-1][0] > total_samples / 16:  # else the numbers would overlap
            shown.append((float(place), f"{tick:,}"))
    top = axes.twiny()
    top.set_xlim(0, total_samples)
    top.set_xticks([place for place, _ in shown], [text for _, text in shown])
    top.set_xlabel("updates")


def _closed(values: Sequence[int]) -> list[int]:
    """Values that hold until the next, with the last one's end."""
    return [*values, values[-1]]


def save_figure(figure: "Figure", path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    named_files.write(path, picture.getvalue())


def blank() -> "Figure":
    check_available()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE[0] / _DPI, SIZE[1] / _DPI), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
