"""`gradwire sweep`: begin a sweep, go on with one, show one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from gradwire.trainer.arguments import ConfigDir, Overrides

if TYPE_CHECKING:
    from gradwire.trainer.launch.signals import ControllerSignals
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


def _run(overrides: list[str], config_dir: Path | None, resume: Path | None) -> int:
    from gradwire.trainer.launch.signals import ControllerSignals

    signals = ControllerSignals()
    signals.install()
    definition = _resumed(overrides, config_dir, resume) if resume is not None else _begun(overrides, config_dir)
    return _control(definition, signals)


def _begun(overrides: list[str], config_dir: Path | None) -> "Definition":
    from gradwire.trainer.sweep.request import requested
    from gradwire.trainer.sweep.storage import open_storage

    definition = requested(overrides, config_dir)
    if definition.section["storage"] is not None:
        open_storage(definition.directory, definition.section["storage"])  # before there is a folder for it
    definition.write()
    return definition


def _resumed(overrides: list[str], config_dir: Path | None, directory: Path) -> "Definition":
    from gradwire.trainer.config import ConfigError, Mistake
    from gradwire.trainer.sweep.definition import Definition

    if config_dir is not None:
        raise ConfigError([Mistake("", "--config-dir", "cannot change in a sweep that has begun: leave it out")])
    return Definition.read(directory).changed(overrides)


def _control(definition: "Definition", signals: "ControllerSignals") -> int:
    from gradwire.trainer.sweep.controller import Controller
    from gradwire.trainer.sweep.lines import Lines

    ledger = open_ledger(definition)
    lines = Lines(definition, ledger)
    lines.begin()
    code = Controller(definition, ledger, signals, lines).run()
    lines.finish(code)
    return int(code)


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
