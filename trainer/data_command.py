"""The command `gradwire data`. Nothing here imports torch before a command runs."""

from typing import Annotated

import typer

from gradwire.trainer.arguments import ConfigDir, Overrides

data = typer.Typer(
    name="data",
    help="Look at what a run would train on.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@data.command()
def preview(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    sample: Annotated[int, typer.Option(min=0, help="Which sample of the run, counted from 0.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 1,
) -> None:
    """Show samples as the run will see them, decoded; what is not learned is grey (without colors: outside of ⟦ ⟧)."""
    from gradwire.trainer import cli

    with cli.friendly():
        from gradwire.trainer.config import compose, validate
        from gradwire.trainer.data.preview import look, show

        valid = validate(compose(overrides or [], config_dir))
        for number in range(sample, sample + count):
            show(look(valid.config, valid.allow_targets, number))
