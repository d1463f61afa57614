"""What `gradwire checkpoint` prints for people."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gradwire.checkpoint.commit import Commit
    from gradwire.checkpoint.difference import Moved
    from gradwire.checkpoint.fsck import Report
    from gradwire.checkpoint.history import Log, Restorable
    from gradwire.checkpoint.outline import Outline
    from gradwire.checkpoint.tags import TagList
    from gradwire.checkpoint.verdicts import Plan

_WIDTH = 200  # of a table that goes to a file or pipe


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns whose heading ends in a space are aligned right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.strip(), justify="right" if column.endswith(" ") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False).print(table)


def printable(value: object) -> str:
    """A value as text in one line without control characters: what a store says is not to steer a terminal."""
    text = "" if value is None else str(value)
    return "".join(sign if sign.isprintable() else "�" for sign in text)


def size_of(count: int | None) -> str:
    """A number of bytes for people."""
    if count is None:
        return "?"
    size, units = float(count), ["B", "KB", "MB", "GB", "TB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


def _numbers(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name}={value:.6g}" for name, value in values.items())


def print_log(log: "Log") -> None:
    """Print every restorable update, newest last."""
    columns = ("update ", "kind", "metrics", "reason", "time", "size ", "added ", "branch", "tags", "writer", "")
    print_table(columns, [row for entry in log.entries for row in _rows(entry)])
    for sequence, problem in log.damaged.items():
        typer.echo(printable(f"number {sequence} cannot be read: {problem}"))
    updates = log.updates
    typer.echo(
        f"{len(updates)} updates of the present branch can be restored"
        + (f", the newest is {updates[-1]}" if updates else "")
    )


def print_held(held: Sequence[tuple["Commit", tuple[str, ...]]]) -> None:
    """Print which tiers have each snapshot, the nearest first; nothing for a run with one tier."""
    if held:
        print_table(("update ", "time", "in"), ((c.update, _time(c), ", ".join(urls)) for c, urls in held))


def _time(commit: "Commit") -> str:
    return commit.created[:19].replace("T", " ")


def _rows(entry: "Restorable") -> list[list[object]]:
    commit = entry.commit
    rows: list[list[object]] = [
        [
            commit.update,
            "snapshot",
            _numbers(commit.metrics),
            commit.reason,
            _time(commit),
            size_of(entry.size),
            size_of(entry.added),
            entry.branch,
            ", ".join(entry.tags),
            commit.writer.identity,
            _remark(entry),
        ]
    ]
    if entry.journalled is not None:
        first, last = entry.journalled
        rows.append([f"{first}…{last}", "journal", "", "", "", "", "", entry.branch, "", "", ""])
    return rows


def _remark(entry: "Restorable") -> str:
    if entry.problem is not None:
        return f"damaged: {entry.problem}"
    recovered = entry.commit.clock.get("recovered")
    return "" if recovered is None else f"not bit-exact: fast recovery at update {recovered}"


def print_snapshot(commit: "Commit", outline: "Outline", tags: Sequence[str]) -> None:
    """Print a snapshot: what it is, what was captured, its tensors."""
    total = sum(tensor.stored.nbytes for tensor in outline.tensors)
    lines = {
        "update": commit.update,
        "commit": f"{commit.name} ({commit.digest})",
        "parent": "none" if commit.parent is None else commit.parent.sequence,
        "created": commit.created,
        "writer": f"{commit.writer.identity} (epoch {commit.epoch})",
        "reason": commit.reason,
        "clock": _numbers(commit.clock),
        "metrics": _numbers(commit.metrics) or "none",
        "tags": ", ".join(tags) or "none",
        "ranks": commit.world_size,
        **{f"captured, {kind}": ", ".join(names) or "nothing" for kind, names in commit.captured.items()},
        "not captured": ", ".join(commit.not_captured) or "nothing known",
        "size": f"{size_of(total)} in {len(outline.tensors)} tensors, and {len(outline.values)} other values",
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        typer.echo(f"{name:<{width}}  {printable(value)}")
    print_table(
        ("tensor", "type", "shape", "bytes "),
        ((t.name, _type(t.stored.dtype), _shape(t.stored.shape), f"{t.stored.nbytes:,}") for t in outline.tensors),
    )


def _type(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "scalar"


def print_moved(moved: Sequence["Moved"], *, everything: bool) -> None:
    """Print what moved, the farthest first; equal tensors only where everything is asked for."""
    shown = [each for each in moved if everything or each.change != "equal"]
    print_table(
        ("tensor", "change", "type", "shape", "largest ", "relative ", "elements "),
        (
            (
                each.name,
                each.change,
                each.dtype,
                _shape(each.shape),
                _short(each.largest),
                _short(each.relative),
                each.elements,
            )
            for each in sorted(shown, key=lambda each: (each.relative is not None, -(each.relative or 0.0), each.name))
        ),
    )
    counts = {change: sum(each.change == change for each in moved) for change in ("changed", "new", "gone", "equal")}
    typer.echo(", ".join(f"{count} {change}" for change, count in counts.items()))


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3e}"


def print_plan(plan: "Plan", *, dry: bool) -> None:
    """Print what becomes of each object."""
    for warning in plan.warnings:
        typer.echo(printable(warning), err=True)
    if dry:
        print_table(
            ("object", "verdict", "reason", "size "),
            (
                (v.name, "goes" if v.goes else "stays", v.reason, "" if v.size is None else size_of(v.size))
                for v in plan.verdicts
            ),
        )
    freed = sum(verdict.size or 0 for verdict in plan.going)
    would = "would go" if dry else "went"
    typer.echo(f"{len(plan.going)} of {len(plan.verdicts)} objects {would}, {size_of(freed)} of them parts and packs")


def print_report(report: "Report", removed: Sequence[str] | None) -> None:
    """Print what was checked and what was found."""
    counts = ", ".join(f"{count} {folder}" for folder, count in report.checked.items() if count)
    typer.echo(f"{report.url}: read {counts or 'nothing'}; {size_of(report.size)} of packs")
    if report.findings:
        print_table(("damaged", "found", "lost"), ((f.name, f.problem, f.lost) for f in report.findings))
    if report.leftovers:
        typer.echo(f"{len(report.leftovers)} parts and packs are of no snapshot: of a save cut off, or under way")
    whole = ", ".join(str(commit.update) for commit in report.whole) or "none"
    typer.echo(f"{'sound' if report.sound else 'DAMAGED'}; whole snapshots of updates: {whole}")
    if report.findings and report.whole and removed is None:
        typer.echo("the same with --repair removes what cannot be restored")
    if removed is not None:
        typer.echo(f"removed {len(removed)} objects" + "".join(f"\n  {name}" for name in removed))


def print_tags(tags: "TagList") -> None:
    """Print all tags."""
    print_table(("tag", "commit ", "created"), ((tag.name, tag.sequence, tag.created) for tag in tags.tags))
    for name, problem in tags.damaged.items():
        typer.echo(printable(f"{name}: {problem}"))
