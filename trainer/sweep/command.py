"""`gradwire sweep`: begin a sweep, go on with one, show one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from gradwire.trainer.arguments import ConfigDir, Overrides

if TYPE_CHECKING:
    from gradwire.trainer.launch.signals import ControllerSignals
    from gradwire.trainer.sweep.controller import Watcher
    from gradwire.trainer.sweep.definition import Definition
    from gradwire.trainer.sweep.ledger import Ledger

_RUN = "run"


class SweepGroup(TyperGroup):
    """Takes what names no command for the arguments of a sweep that is to run."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


sweep = typer.Typer(
    name="sweep",
    cls=SweepGroup,
    help="Search keys of the configuration: gradwire sweep sweep.dir=DIR optimizer.lr='interval(1e-4, 1e-2)' …",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@sweep.command(_RUN)
def run(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the sweep in this folder, or help others with it.")
    ] = None,
) -> None:
    """Run trials: keys that are given several values are searched. `run` itself need not be written."""
    from gradwire.trainer.cli import friendly

    with friendly():
        raise typer.Exit(_run(overrides or [], config_dir, resume))


@sweep.command()
def show(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The sweep's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV.")] = False,
) -> None:
    """Show the trials of a sweep with their values and results; the best ones have a star."""
    from gradwire.trainer.cli import friendly

    with friendly():
        from gradwire.trainer.sweep.definition import Definition

        definition = Definition.read(directory)
        ledger = open_ledger(definition)
        if as_json or as_csv:
            from gradwire.trainer.sweep import standing

            text = standing.to_json(definition, ledger) if as_json else standing.to_csv(definition, ledger)
            typer.echo(text, nl=False)
        else:
            _print_table(definition, ledger)


def _print_table(definition: "Definition", ledger: "Ledger") -> None:
    from rich.console import Console

    from gradwire.trainer.sweep.screen import picture
    from gradwire.trainer.sweep.standing import standings

    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(picture(standings(definition, ledger), definition, ledger))
    for line in _closing(definition, ledger):
        typer.echo(line)


def _run(overrides: list[str], config_dir: Path | None, resume: Path | None) -> int:
    from gradwire.trainer.launch.signals import ControllerSignals

    signals = ControllerSignals()
    signals.install()
    definition = _resumed(overrides, config_dir, resume) if resume is not None else _begun(overrides, config_dir)
    return _control(definition, signals)


def _begun(overrides: list[str], config_dir: Path | None) -> "Definition":
    from gradwire.trainer.sweep.request import requested
    from gradwire.trainer.sweep.storage import check

    definition = requested(overrides, config_dir)
    check(definition.section["storage"])  # before there is a folder for the sweep
    definition.check_place()
    definition.write()
    return definition


def _resumed(overrides: list[str], config_dir: Path | None, directory: Path) -> "Definition":
    from gradwire.trainer.config import ConfigError, Mistake
    from gradwire.trainer.sweep.definition import Definition
    from gradwire.trainer.sweep.transfer import check

    if config_dir is not None:
        raise ConfigError([Mistake("", "--config-dir", "cannot change in a sweep that has begun: leave it out")])
    definition = Definition.read(directory).changed(overrides)
    definition.check_place()
    if overrides:
        check(definition)
        definition.keep()
    return definition


def _control(definition: "Definition", signals: "ControllerSignals") -> int:
    from gradwire.trainer.launch.exit_codes import ExitCode
    from gradwire.trainer.launch.streams import say
    from gradwire.trainer.sweep.controller import Controller
    from gradwire.trainer.sweep.errors import TooManyFailuresError

    ledger = open_ledger(definition)
    done, trials = len(ledger.finished()), definition.trials()
    say(f"sweep     {definition.directory} ({trials} trials{f', {done} done' if done else ''})")
    failures: TooManyFailuresError | None = None
    code = ExitCode.FAILED
    with _watching(definition, ledger) as watcher:
        try:
            code = Controller(definition, ledger, signals, watcher).run()
        except TooManyFailuresError as error:
            failures = error
    for line in _closing(definition, ledger):
        say(line)
    if failures is not None:
        raise failures
    return int(code)


@contextmanager
def _watching(definition: "Definition", ledger: "Ledger") -> Iterator["Watcher"]:
    """A table on a terminal, lines elsewhere."""
    from gradwire.trainer.sweep.lines import Lines
    from gradwire.trainer.sweep.screen import Screen

    if not sys.stdout.isatty():
        yield Lines(definition, ledger)
        return
    screen = Screen(definition, ledger)
    with screen.shown():
        yield screen


def _closing(definition: "Definition", ledger: "Ledger") -> Iterator[str]:
    """What to type next; the best configuration is written by then."""
    from gradwire.trainer.sweep import schedule
    from gradwire.trainer.sweep.best import FOLDER, write_best

    directory = definition.directory
    if len(ledger.finished()) < definition.trials():
        yield f"go on     gradwire sweep --resume {directory}"
    for each in write_best(definition, ledger):
        name = "best" if each.prediction is None else "transfer"
        yield f"{name:<9} gradwire train --config-dir {directory / FOLDER} experiment={each.file.stem}"
        if each.prediction is not None:
            yield f"predicted {each.prediction}"
    yield from schedule.lines(definition, ledger)
    yield f"look      gradwire sweep show {directory}"


def open_ledger(definition: "Definition") -> "Ledger":
    """The ledger of a sweep."""
    from gradwire.trainer.sweep.ledger import Ledger

    return Ledger.open(
        definition.directory,
        definition.section["storage"],
        definition.study,
        definition.space,
        definition.objectives,
        definition.constraints,
    )
