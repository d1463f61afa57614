"""What the store of a run tells: its snapshots, how far the journal goes, and what was decided while running."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.checkpoint.commit import Commit
    from gradwire.checkpoint.store import Store

_DECISION = re.compile(r"shared\.decisions\[(\d+)\]\.(update|name|value|reason)")


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that is in the store.

    Args:
        update: Of the run.
        time: When it was committed, in seconds since 1970.
        reason: `interval`, `end` or `preempted`.
        size: Bytes of its tensors; None where it is damaged.
        added: Bytes that no earlier snapshot needs, likewise.
        present: Whether the run went on from it; else a later start went back to before it.
        journalled: First and last update journalled after it; None without any.
        problem: Why it cannot be restored.
    """

    update: int
    time: float
    reason: str
    size: int | None
    added: int | None
    present: bool
    journalled: tuple[int, int] | None
    problem: str | None


@dataclass(frozen=True)
class Kept:
    """What a store holds.

    Args:
        snapshots: Oldest first.
        decisions: Update, what was decided, and why, in order.
        problem: Why it could not be read; None where it was.
    """

    snapshots: tuple[Snapshot, ...] = ()
    decisions: tuple[tuple[int, str, str], ...] = ()
    problem: str | None = None


def read_store(run: Path, url: str | None) -> Kept:
    """What the store of a run holds, at a URL or in the run's folder; where it cannot be read, why."""
    from gradwire.checkpoint import CheckpointError
    from gradwire.checkpoint.history import read_log
    from gradwire.checkpoint.store import Store

    folder = run / "checkpoints"
    if url is None and not folder.is_dir():
        return Kept()
    try:
        store = Store.open(url or str(folder))
        log = read_log(store)
        snapshots = tuple(
            Snapshot(
                entry.commit.update,
                datetime.fromisoformat(entry.commit.created).timestamp(),
                entry.commit.reason,
                entry.size,
                entry.added,
                entry.branch == "present",
                entry.journalled,
                entry.problem,
            )
            for entry in log.entries
        )
        whole = [entry.commit for entry in log.entries if entry.branch == "present" and entry.problem is None]
        return Kept(snapshots, _decisions(store, whole[-1]) if whole else ())
    except (CheckpointError, OSError, ImportError, ValueError) as error:
        return Kept(problem=str(error) or type(error).__name__)


def _decisions(store: "Store", commit: "Commit") -> tuple[tuple[int, str, str], ...]:
    """The decision log as a snapshot has it."""
    from gradwire.checkpoint.outline import read_outline

    found: dict[int, dict[str, Any]] = {}
    for path, value in read_outline(store, commit).values.items():
        if match := _DECISION.fullmatch(path):
            found.setdefault(int(match[1]), {})[match[2]] = value
    return tuple(_told(found[place]) for place in sorted(found))


def _told(decision: Mapping[str, Any]) -> tuple[int, str, str]:
    return (
        int(decision.get("update", 0)),
        f"{decision.get('name')} = {decision.get('value')}",
        str(decision.get("reason", "")),
    )
