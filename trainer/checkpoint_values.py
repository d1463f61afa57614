"""What `gradwire checkpoint --json` prints."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from gradwire.checkpoint.commit import Commit
    from gradwire.checkpoint.fsck import Report
    from gradwire.checkpoint.history import Log
    from gradwire.checkpoint.outline import Outline


def print_json(values: Any) -> None:
    """Print JSON; numbers that JSON does not have as texts."""
    typer.echo(json.dumps(_finite(values), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def commit_values(commit: "Commit") -> dict[str, Any]:
    """A commit for scripts."""
    return {
        "update": commit.update,
        "commit": commit.name,
        "digest": commit.digest,
        "created": commit.created,
        "reason": commit.reason,
        "clock": dict(commit.clock),
        "metrics": dict(commit.metrics),
        "world_size": commit.world_size,
        "writer": commit.writer.identity,
        "epoch": commit.epoch,
        "parent": commit.parent and commit.parent.sequence,
    }


def log_values(log: "Log") -> dict[str, Any]:
    """A log for scripts."""
    return {
        "url": log.url,
        "updates": log.updates,
        "snapshots": [
            {
                **commit_values(entry.commit),
                "branch": entry.branch,
                "tags": list(entry.tags),
                "size": entry.size,
                "stored": entry.stored,
                "added": entry.added,
                "journalled": entry.journalled,
                "problem": entry.problem,
            }
            for entry in log.entries
        ],
        "damaged": dict(log.damaged),
    }


def snapshot_values(commit: "Commit", outline: "Outline", tags: Sequence[str]) -> dict[str, Any]:
    """A snapshot for scripts."""
    return {
        **commit_values(commit),
        "tags": list(tags),
        "captured": {kind: list(names) for kind, names in commit.captured.items()},
        "not_captured": list(commit.not_captured),
        "tensors": [
            {
                "name": tensor.name,
                "dtype": str(tensor.stored.dtype).removeprefix("torch."),
                "shape": list(tensor.stored.shape),
                "bytes": tensor.stored.nbytes,
            }
            for tensor in outline.tensors
        ],
        "values": outline.values,
    }


def report_values(report: "Report", removed: Sequence[str] | None) -> dict[str, Any]:
    """A report for scripts."""
    return {
        "url": report.url,
        "sound": report.sound,
        "checked": report.checked,
        "bytes": report.size,
        "findings": [{"object": f.name, "problem": f.problem, "lost": f.lost} for f in report.findings],
        "leftovers": list(report.leftovers),
        "whole": [commit.update for commit in report.whole],
        "removed": None if removed is None else list(removed),
    }


def held_values(held: Sequence[tuple["Commit", tuple[str, ...]]]) -> dict[str, Any]:
    """Which tiers have each snapshot; nothing for a run with one tier."""
    found = [{"update": commit.update, "created": commit.created, "in": list(urls)} for commit, urls in held]
    return {"tiers": found} if found else {}
