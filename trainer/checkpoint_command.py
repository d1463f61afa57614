"""The command `gradwire checkpoint`. Nothing here imports torch before a command runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.trainer.launch.exit_codes import ExitCode

if TYPE_CHECKING:
    from gradwire.trainer.checkpoint_reference import Reference

checkpoint = typer.Typer(
    name="checkpoint",
    help="Look into a store of checkpoints, check it, name, compare, copy and remove what is in it.",
    epilog="A store is named by its URL (a path, s3://…, gs://…, abfs://…) or by the run it belongs to; "
    "@UPDATE or @TAG behind it means one snapshot, otherwise the newest.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Store = Annotated[str, typer.Argument(metavar="URL-OR-RUN", help="The store, or the run that it belongs to.")]
_Snapshot = Annotated[
    str, typer.Argument(metavar="URL-OR-RUN[@UPDATE]", help="The snapshot: @UPDATE or @TAG, otherwise the newest.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@checkpoint.command()
def log(store: _Store, as_json: _Json = False) -> None:
    """List every update that can be restored: when, why, how good, how large, on which branch."""
    from gradwire.trainer import cli

    with cli.friendly():
        from gradwire.checkpoint.branches import holders
        from gradwire.checkpoint.commits import CommitLog
        from gradwire.checkpoint.history import read_log
        from gradwire.checkpoint.journal_reader import journalled_epochs
        from gradwire.trainer import checkpoint_tables as tables
        from gradwire.trainer import checkpoint_values as values
        from gradwire.trainer.checkpoint_reference import Reference

        reference = Reference.parse(store)
        found, tiers = read_log(reference.store), reference.tiers()
        histories = [CommitLog(tier).history() for tier in tiers] if len(tiers) > 1 else []
        held = holders(histories, journalled_epochs(tiers[-1])) if histories else []
        if not found.entries and not found.damaged and not held:
            from gradwire.checkpoint import NoCheckpoint

            raise NoCheckpoint(f"{found.url} holds no snapshot; check the URL")
        if as_json:
            values.print_json({**values.log_values(found), **values.held_values(held)})
        else:
            tables.print_log(found)
            tables.print_held(held)


@checkpoint.command()
def show(snapshot: _Snapshot, as_json: _Json = False) -> None:
    """Show a snapshot: its commit, what was captured, its tensors."""
    from gradwire.trainer import cli

    with cli.friendly():
        from gradwire.checkpoint.outline import read_outline
        from gradwire.checkpoint.reading import reading
        from gradwire.checkpoint.tags import Tags
        from gradwire.trainer import checkpoint_tables as tables
        from gradwire.trainer import checkpoint_values as values
        from gradwire.trainer.checkpoint_reference import Reference

        reference = Reference.parse(snapshot)
        commit = reference.find()
        with reading(reference.store, commit):
            outline = read_outline(reference.store, commit)
        names = Tags(reference.store).all().names(commit.sequence)
        if as_json:
            values.print_json(values.snapshot_values(commit, outline, names))
        else:
            tables.print_snapshot(commit, outline, names)


@checkpoint.command()
def diff(
    first: _Snapshot,
    second: Annotated[
        str, typer.Argument(metavar="[URL-OR-RUN]@UPDATE", help="The later snapshot; @UPDATE alone: of the same store.")
    ],
    everything: Annotated[bool, typer.Option("--all", help="List equal tensors too.")] = False,
    as_json: _Json = False,
) -> None:
    """Show which tensors moved between two snapshots, and how far."""
    from gradwire.trainer import cli

    with cli.friendly():
        from dataclasses import asdict

        from gradwire.checkpoint.difference import difference
        from gradwire.trainer import checkpoint_tables as tables
        from gradwire.trainer import checkpoint_values as values
        from gradwire.trainer.checkpoint_reference import Reference

        before = Reference.parse(first)
        after = Reference.parse(_store_of(first, before) + second if second.startswith("@") else second)
        moved = list(difference(before.store, before.find(), after.store, after.find()))
        if as_json:
            values.print_json([asdict(each) for each in moved])
        else:
            tables.print_moved(moved, everything=everything)


def _store_of(text: str, reference: "Reference") -> str:
    """What was typed before the `@`."""
    return text if reference.ref is None else text.rpartition("@")[0]


@checkpoint.command()
def fsck(
    store: _Store,
    repair: Annotated[
        bool,
        typer.Option(help="Remove what cannot be restored and what nothing needs; stops a run that still writes."),
    ] = False,
    as_json: _Json = False,
) -> None:
    """Read and verify everything in a store: exit code 0 sound, 3 damaged."""
    from gradwire.trainer import cli

    with cli.friendly():
        from gradwire.checkpoint import fsck as checking
        from gradwire.checkpoint.repair import repair as remove
        from gradwire.trainer import checkpoint_tables as tables
        from gradwire.trainer import checkpoint_values as values
        from gradwire.trainer.checkpoint_reference import Reference
        from gradwire.trainer.launch.claim import hold

        reference = Reference.parse(store)
        release = hold(reference.run) if repair and reference.run is not None else None
        report = checking.check(reference.store)
        if not any(report.checked.values()):
            from gradwire.checkpoint import NoCheckpoint

            raise NoCheckpoint(f"{report.url} holds no snapshot; check the URL")
        removed = remove(reference.store, report) if repair else None
        if as_json:
            values.print_json(values.report_values(report, removed))
        else:
            tables.print_report(report, removed)
        if release is not None:
            release()
        raise typer.Exit(ExitCode.DONE if report.sound or removed else ExitCode.CHECKPOINT)


@checkpoint.command()
def fork(
    snapshot: _Snapshot,
    target: Annotated[str, typer.Argument(metavar="URL-OR-RUN", help="The new store's URL, or a new run directory.")],
    as_json: _Json = False,
) -> None:
    """Start a new store, or a new run, at a snapshot: just before the loss spike, say."""
    from gradwire.trainer import cli

    with cli.friendly():
        from gradwire.trainer import checkpoint_tables as tables
        from gradwire.trainer import checkpoint_values as values
        from gradwire.trainer.checkpoint_fork import fork_to
        from gradwire.trainer.checkpoint_reference import Reference

        forked = fork_to(Reference.parse(snapshot), target)
        if as_json:
            values.print_json(forked.values)
        else:
            typer.echo(tables.printable(forked.sentence))


@checkpoint.command()
def tag(
    snapshot: _Snapshot,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The tag; without it, all tags are listed.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Take the name away.")] = False,
    as_json: _Json = False,
) -> None:
    """Name a snapshot, which then stays; list the names; or take one away."""
    from gradwire.trainer import cli

    with cli.friendly():
        from gradwire.checkpoint.tags import Tags
        from gradwire.trainer import checkpoint_tables as tables
        from gradwire.trainer import checkpoint_values as values
        from gradwire.trainer.checkpoint_reference import Reference

        reference = Reference.parse(snapshot)
        tags = Tags(reference.store)
        if delete and name is None:
            raise typer.BadParameter("--delete needs the NAME of a tag")
        if name is not None and delete:
            tags.delete(name)
        elif name is not None:
            tags.create(name, reference.find())
        if as_json:
            found = tags.all()
            values.print_json({each.name: {"commit": each.sequence, "created": each.created} for each in found.tags})
        elif name is None:
            tables.print_tags(tags.all())


@checkpoint.command()
def prune(
    store: _Store,
    keep_last: Annotated[
        int | None, typer.Option(min=1, help="Newest snapshots kept; as the run has it, or 3.")
    ] = None,
    keep_best: Annotated[int | None, typer.Option(min=0, help="Best ones kept; as the run has it, or 1.")] = None,
    best: Annotated[str, typer.Option(help="The metric that tells the best; lower is better.")] = "eval/loss",
    keep_every: Annotated[int | None, typer.Option(min=1, metavar="UPDATES", help="Keep one every so many.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list every object, and why it goes or stays.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Remove snapshots that need not stay, and what no snapshot needs; safe beside a run that writes to the store."""
    from gradwire.trainer import cli

    with cli.friendly():
        from dataclasses import asdict

        from gradwire.checkpoint.pruning import plan_prune
        from gradwire.checkpoint.retention import Retention
        from gradwire.trainer import checkpoint_tables as tables
        from gradwire.trainer import checkpoint_values as values
        from gradwire.trainer.checkpoint_reference import Reference

        reference = Reference.parse(store)
        retention = Retention(
            keep_last or reference.setting("keep", 3),
            reference.setting("keep_best", 1) if keep_best is None else keep_best,
            best,
            keep_every or reference.setting("keep_every", None),
        )
        collector, plan = plan_prune(reference.store, retention)
        if not dry_run:
            collector.carry_out(plan)
        if as_json:
            values.print_json([asdict(verdict) for verdict in plan.verdicts])
        else:
            tables.print_plan(plan, dry=dry_run)


@checkpoint.command()
def export(
    snapshot: _Snapshot,
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="OUT.safetensors, or a folder in Hugging Face's layout.")
    ],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Only the adapter, without its base, as a folder that peft loads.")
    ] = False,
) -> None:
    """Write a snapshot's weights for other programs; an adapter is added to its base unless it is wanted alone."""
    from gradwire.trainer import cli

    with cli.friendly():
        from gradwire.trainer.checkpoint_export import export_to
        from gradwire.trainer.checkpoint_reference import Reference

        reference = Reference.parse(snapshot)
        update = reference.on_branch().update if isinstance(reference.ref, str) else reference.ref
        for file in export_to(reference.store.url, update, reference.run, target, adapter_alone=adapter):
            typer.echo(file)
