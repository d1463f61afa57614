"""The picture of `gradwire bench comm`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gradwire.comm.benchmark import Row
from gradwire.trainer.plots import blank, save_figure


def save(path: Path, sizes: Mapping[str, Mapping[str, Row]], backend: str, nbytes: Sequence[int]) -> None:
    """Bandwidth over size, and how many times as fast as the backend's own, for each contender.

    Args:
        path: The PNG file.
        sizes: Rows by size and contender.
        backend: The contender that the others are compared with.
        nbytes: Of the sizes, in their order.

    Raises:
        MissingPackageError: matplotlib is not installed.
        WriteError: The file cannot be written.
    """
    figure = blank()
    left, right = figure.subplots(1, 2)
    names = list(next(iter(sizes.values())))
    styles = [(f"C{number % 10}", ("-", "--", ":")[number // 10 % 3]) for number in range(len(names))]
    for name, (color, dashes) in zip(names, styles, strict=True):
        found = [table[name] for table in sizes.values()]
        look = {"color": color, "linestyle": dashes, "marker": ".", "label": name}
        left.plot(nbytes, [row.busbw / 1e6 for row in found], **look)
        right.plot(nbytes, [row.over_backend[0] if row.over_backend else float("nan") for row in found], **look)
    left.set_ylabel("busbw, MB/s of uncompressed numbers")
    right.set_ylabel(f"times as fast as {backend}'s own")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("bytes of the tensor")
        axes.grid(alpha=0.25)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")
    save_figure(figure, path)
