"""The command `gradwire report`. Nothing here imports numpy before the command runs."""

from pathlib import Path
from typing import Annotated

import typer

_DEFAULT = "report.html"


def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN…", help="Run directories, their names under runs/, or a sweep's folder.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The file to write; report.html in the first run's folder."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="FOLDER", help="Draw each chart as a picture too (needs gradwire[plot])."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve it on this machine and refresh it until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --watch; 0 takes a free one.")] = 0,
) -> None:
    """Show runs at a glance: one HTML file that needs no network, several runs laid over each other."""
    from gradwire.trainer.cli import friendly

    with friendly():
        from gradwire.trainer.report.sweeps import is_sweep

        sweeps = [Path(run) for run in runs if is_sweep(Path(run))]
        folders = _folders([run for run in runs if Path(run) not in sweeps])
        if watch:
            _watch(folders, sweeps, port, show=show)
            return
        from gradwire.trainer.named_files import check_writable
        from gradwire.trainer.plots import check_available
        from gradwire.trainer.report import reporting

        file = (sweeps + folders)[0] / _DEFAULT if out is None else out
        check_writable(file)
        if png is not None:
            check_available()
        document = reporting.report_on(folders, sweeps)
        reporting.write(document, file)
        typer.echo(f"report    {file}")
        if png is not None:
            from gradwire.trainer.report.pictures import save_pictures

            typer.echo(f"pictures  {len(save_pictures(document, png))} in {png}")
        if show:
            typer.launch(str(file.resolve()))


def _folders(runs: list[str]) -> list[Path]:
    """The folders of the runs, each once.

    Raises:
        RunNotFoundError: one is no run.
    """
    from gradwire.trainer.launch.run_directory import RunReference

    return list(dict.fromkeys(RunReference.parse(run).directory for run in runs))


def _watch(folders: list[Path], sweeps: list[Path], port: int, *, show: bool) -> None:
    from gradwire.trainer.report.errors import ReportError
    from gradwire.trainer.report.server import serve

    if sweeps:
        raise ReportError(f"--watch follows runs, and {sweeps[0]} is a sweep: name its runs, or leave --watch out")

    def ready(address: str) -> None:
        typer.echo(f"report    {address} (until Ctrl-C)")
        if show:
            typer.launch(address)

    serve(folders, port, ready)
