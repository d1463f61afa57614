"""The command `gradwire`. It answers --help without torch; each command imports what it needs."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.trainer.arguments import Again, ConfigDir, JsonFile, Links, Overrides, PngFile, Prove, Run
from gradwire.trainer.bench.command import bench
from gradwire.trainer.checkpoint_command import checkpoint
from gradwire.trainer.data_command import data
from gradwire.trainer.generate_command import generate
from gradwire.trainer.launch.streams import make_usable
from gradwire.trainer.manifest_command import manifest
from gradwire.trainer.report.command import report
from gradwire.trainer.resume_command import ResumeCommand
from gradwire.trainer.sweep.command import sweep

if TYPE_CHECKING:
    from gradwire.trainer.config import Composed, Valid
    from gradwire.trainer.config.validation import Contradictions
    from gradwire.trainer.launch.job import Job

app = typer.Typer(
    name="gradwire",
    help="Train PyTorch models on the machines and networks people actually have.",
    epilog="Overrides follow Hydra's grammar: optimizer.lr=1e-3 data=text +callbacks.mine=… ~clip. "
    "Exit codes: 0 done, 1 failed, 2 command or config wrong, 3 checkpoint damaged or missing, "
    "75 preempted and saved: run `gradwire resume`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(bench)
app.add_typer(checkpoint)
app.add_typer(data)
app.add_typer(sweep)


def main() -> None:
    """Entry point of the console script."""
    make_usable()
    app(prog_name="gradwire")


@app.command()
def train(overrides: Overrides = None, config_dir: ConfigDir = None, again: Again = False) -> None:
    """Train: compose the configuration, check all of it, start the workers."""
    _start(lambda: new_job(overrides or [], config_dir).repeatable() if again else new_job(overrides or [], config_dir))


@app.command(cls=ResumeCommand)
def resume(run: Run, overrides: Overrides = None, config_dir: ConfigDir = None, prove: Prove = None) -> None:
    """Continue a run from its newest whole checkpoint, or from RUN@UPDATE."""
    arguments = {} if prove is None else {"prove": prove}
    _start(lambda: replace(_stored_job("train", run, overrides or [], config_dir), arguments=arguments))


@app.command()
def evaluate(run: Run, overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Evaluate a run's newest checkpoint, or RUN@UPDATE, on its own data or any other (data=…)."""
    _start(lambda: _stored_job("evaluate", run, overrides or [], config_dir))


@app.command()
def config(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Print the composed configuration: what each key means and where its value came from."""
    with friendly():
        from gradwire.trainer.config import compose, describe

        typer.echo(describe(checked(compose(overrides or [], config_dir))), nl=False)


@app.command()
def plan(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    json_file: JsonFile = None,
    png_file: PngFile = None,
    link: Links = None,
    compute: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds that an update computes, to foretell a step with --link."),
    ] = None,
    memory: Annotated[bool, typer.Option("--memory", help="What each strategy needs of a rank's memory.")] = False,
) -> None:
    """Print batch size and learning rate over the run, and its updates, without training."""
    with friendly():
        from gradwire.trainer import plan_memory, plan_network, plan_table, plots
        from gradwire.trainer.config import compose

        check_files(json_file, png_file)
        valid = checked(compose(overrides or [], config_dir))
        planned = plan_table.planned(valid.config, valid.allow_targets)
        totals = plan_table.totals(valid.config, planned)
        constants = plan_table.compared(valid.config, planned)
        network = plan_network.foretell(valid.config, link, compute, valid.allow_targets) if link else None
        room = plan_memory.foretell(valid.config, totals.largest_batch, valid.allow_targets) if memory else None
        told = {"network": network, "memory": room}
        extras = [each for each in told.values() if each is not None]
        typer.echo(
            plan_table.to_text(planned, totals, constants) + "".join(each.to_text() for each in extras), nl=False
        )
        if json_file is not None:
            records = {name: each.to_record() for name, each in told.items() if each is not None}
            plan_table.write_json(json_file, planned, totals, constants, records)
        if png_file is not None:
            plots.save_plan(png_file, planned.points, totals.samples)


@app.command("batch-size")
def batch_size(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    updates: Annotated[int, typer.Option(min=0, help="Updates to train before the noise scale is measured.")] = 50,
    json_file: JsonFile = None,
    png_file: PngFile = None,
) -> None:
    """Measure what fits, its speed and the gradient noise scale; recommend batch size, learning rate and warm-up."""
    typed = [*([] if config_dir is None else ["--config-dir", str(config_dir)]), *(overrides or [])]
    told, files = {"updates": updates, "command": typed}, {"json": json_file, "png": png_file}
    with measuring("batch-size", overrides or [], config_dir, told, files) as prepare:
        _start(prepare)


@app.command()
def tokenize(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A file, glob or URL of text.")],
    destination: Annotated[str, typer.Argument(metavar="DST", help="The token file to write.")],
    tokenizer: Annotated[str, typer.Option(help="bytes, or a Hugging Face tokenizer by folder or hub name.")] = "bytes",
) -> None:
    """Turn text into a token file for data=tokens."""
    with friendly():
        from gradwire.trainer.data.tokenize import tokenize as write

        write(source, destination, tokenizer)


app.command()(generate)
app.command()(manifest)
app.command()(report)


def check_files(json_file: Path | None, png_file: Path | None) -> None:
    """Refuse files that cannot be written, before anything is done for them."""
    from gradwire.trainer.named_files import check_writable

    for file in (json_file, png_file):
        if file is not None:
            check_writable(file)
    if png_file is not None:
        from gradwire.trainer.plots import check_available

        check_available()


def new_job(overrides: list[str], config_dir: Path | None) -> "Job":
    """Compose and validate what is to be trained."""
    from gradwire.trainer.config import compose
    from gradwire.trainer.launch.job import Job

    valid = checked(compose(overrides, config_dir))
    return Job(valid.config, allow=valid.allow_targets, overrides=tuple(overrides))


@contextmanager
def measuring(
    mode: str,
    overrides: list[str],
    config_dir: Path | None,
    arguments: Mapping[str, Any],
    files: Mapping[str, Path | None],
) -> "Iterator[Callable[[], Job]]":
    """What prepares a job that measures, in a folder that is there within the block alone.

    Args:
        mode: What the job is for.
        overrides: Of the configuration.
        config_dir: Searched for YAML first.
        arguments: Told to the ranks.
        files: Told as well: first where to write the numbers, then where a picture.
    """
    with ExitStack() as stack:

        def prepare() -> "Job":
            check_files(*files.values())
            job = new_job(overrides, config_dir)
            folder = stack.enter_context(TemporaryDirectory(prefix=f"gradwire-{mode}-"))
            named = {name: None if file is None else str(file.absolute()) for name, file in files.items()}
            return replace(job, mode=mode, run_dir=Path(folder), arguments={**arguments, **named})

        yield prepare


def _stored_job(mode: str, run: str, overrides: list[str], config_dir: Path | None) -> "Job":
    from gradwire.trainer.config import load_resolved
    from gradwire.trainer.config.contradictions import contradictions, contradictions_of_evaluation
    from gradwire.trainer.launch.job import Job
    from gradwire.trainer.launch.run_directory import CONFIG, RunReference

    reference = RunReference.parse(run)
    rules = contradictions_of_evaluation if mode == "evaluate" else contradictions
    valid = checked(load_resolved(reference.directory / CONFIG, overrides, config_dir), rules)
    return Job(
        valid.config,
        mode=mode,
        restore="latest" if reference.update is None else str(reference.update),
        allow=valid.allow_targets,
        overrides=tuple(overrides),
        run_dir=reference.directory,
    )


def checked(composed: "Composed", contradictions: "Contradictions | None" = None) -> "Valid":
    """The configuration if it can be used, after what the user should know was said.

    Raises:
        ConfigError: it cannot.
    """
    from gradwire.trainer.config import validate

    valid = validate(composed, contradictions)
    for note in valid.notes:
        typer.echo(note, err=True)
    return valid


def _start(prepare: "Callable[[], Job]") -> None:
    """Run a job; ends the process with its exit code."""
    with friendly():
        from gradwire.trainer.launch.start import start

        raise typer.Exit(start(prepare))


@contextmanager
def friendly() -> Iterator[None]:
    """Turn the errors that a user can make into a message and an exit code; others are bugs and keep their trace."""
    try:
        yield
    except typer.Exit:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        _refuse(f"{error.strerror}: {error.filename}", 2)
    except BaseException as error:
        from gradwire.trainer.launch.failure import exit_code_of, is_own

        if not is_own(error):
            raise
        _refuse(str(error), int(exit_code_of(error, otherwise=2)))


def _refuse(message: str, code: int) -> None:
    sys.stdout.flush()
    typer.echo(message, err=True)
    raise typer.Exit(code)
