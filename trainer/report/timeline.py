"""What happened to a run, in order: starts and ends, snapshots, the journal, updates that were lost, decisions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradwire.trainer.report.metrics import Floats, Metrics
from gradwire.trainer.report.recorded import Recorded, Start
from gradwire.trainer.report.store import Snapshot

Row = Literal["training", "lost", "snapshots", "journal", "decisions"]
Tone = Literal["good", "neutral", "bad"]
TIMELINE = "Starts, snapshots, journal"
ROWS: dict[Row, str] = {
    "training": "training",
    "lost": "done twice",
    "snapshots": "snapshots",
    "journal": "journal",
    "decisions": "decisions",
}  # from above, with their names


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Args:
        row: Which row of the time line it is drawn in.
        update: The update at which it began.
        last: The last update of it; None for a moment.
        time: When it began, in seconds since 1970; None where unknown.
        until: When it ended, likewise; None for a moment.
        text: What, for people.
        tone: Whether that is good.
    """

    row: Row
    update: int
    last: int | None
    time: float | None
    until: float | None
    text: str
    tone: Tone = "neutral"


def events_of(run: Recorded) -> list[Event]:
    """All events of a run, in order of time where it is known, else of updates."""
    when = _Clock(run)
    found = [*_starts(run), *_lost(run), *_snapshots(run, when), *_journal(run, when), *_decisions(run, when)]
    return sorted(found, key=lambda event: (event.time if event.time is not None else -1.0, event.update))


class _Clock:
    """Says at what time an update was done, as far as the lines of metrics tell."""

    def __init__(self, run: Recorded) -> None:
        updates, times = run.metrics.positions["update"], run.metrics.positions["time"]
        known = ~np.isnan(times)
        self._updates, self._times = updates[known], times[known]
        if run.starts and (not len(self._updates) or self._updates[0] > 0):
            self._updates = np.insert(self._updates, 0, 0.0)
            self._times = np.insert(self._times, 0, run.starts[0].began)

    def at(self, update: int) -> float | None:
        """Between two lines as if all updates took equally long; None without any time."""
        return float(np.interp(update, self._updates, self._times)) if len(self._updates) else None


def _starts(run: Recorded) -> Iterator[Event]:
    everything = np.concatenate([run.metrics.positions["time"], run.abandoned.positions["time"]])
    updates = np.concatenate([run.metrics.positions["update"], run.abandoned.positions["update"]])
    following = [*(start.began for start in run.starts[1:]), np.inf][: len(run.starts)]
    for number, (start, until) in enumerate(zip(run.starts, following, strict=True)):
        newest = until == np.inf
        tone = _tone(start, newest=newest)
        ended, last = _end(start, until, everything, updates)
        yield Event(
            "training", start.update or 0, last, start.began, ended, _told(number, start, last, newest=newest), tone
        )


def _end(start: Start, following: float, times: Floats, updates: Floats) -> tuple[float, int]:
    """When a start ended, as far as is known, and the last update that it logged."""
    within = (times >= start.began) & (times < following)
    seen = float(times[within].max()) if within.any() else start.began
    last = int(updates[within].max()) if within.any() else start.update or 0
    return (seen if start.ended is None else start.ended), last


def _told(number: int, start: Start, last: int, *, newest: bool) -> str:
    if start.update is None:
        came = "started anew"
    elif start.snapshot is None or start.snapshot >= start.update:
        came = f"went on from the snapshot of update {start.update}"
    else:
        replayed = start.update - start.snapshot
        came = f"went on from update {start.update}: snapshot of {start.snapshot}, {replayed} replayed from the journal"
    ranks = "1 rank" if start.ranks == 1 else f"{start.ranks} ranks"
    unknown = "running, or killed" if newest else "no end recorded: killed"
    ends = {"preempted": "stopped and saved", None: unknown}
    return f"start {number + 1} ({ranks}) {came}; to update {last}; {ends.get(start.status, start.status)}"


def _tone(start: Start, *, newest: bool) -> Tone:
    """Bad is what failed or was killed; the newest start may be running still."""
    if start.status is None:
        return "neutral" if newest else "bad"
    tones: dict[str, Tone] = {"done": "good", "preempted": "neutral"}
    return tones.get(start.status, "bad")


def _lost(run: Recorded) -> Iterator[Event]:
    """Updates that were logged and then taken back: one event for each stretch."""
    updates, times = run.abandoned.positions["update"], run.abandoned.positions["time"]
    edges = np.flatnonzero(np.diff(updates) <= 0) + 1
    for stretch in np.split(np.arange(len(updates)), edges):
        if len(stretch):
            first, last = int(updates[stretch[0]]), int(updates[stretch[-1]])
            began, ended = (None if np.isnan(times[place]) else float(times[place]) for place in stretch[[0, -1]])
            text = f"updates {first} to {last} were logged and then done again ({len(stretch)} lines taken back)"
            yield Event("lost", first, last, began, ended, text, "bad")


def _snapshots(run: Recorded, when: _Clock) -> Iterator[Event]:
    stored = {snapshot.update for snapshot in run.kept.snapshots if snapshot.present}
    for snapshot in run.kept.snapshots:
        text = f"snapshot of update {snapshot.update} ({snapshot.reason}), {_size(snapshot)}"
        bad = snapshot.problem is not None
        text += f"; damaged: {snapshot.problem}" if bad else "" if snapshot.present else "; abandoned by a later start"
        yield Event("snapshots", snapshot.update, None, snapshot.time, None, text, "bad" if bad else "neutral")
    for update in _logged_snapshots(run.metrics):
        if update not in stored:
            text = f"snapshot of update {update}, no longer in the store"
            yield Event("snapshots", update, None, when.at(update), None, text)


def _logged_snapshots(metrics: Metrics) -> list[int]:
    column = metrics.columns.get("checkpoint/update")
    return [] if column is None else [int(update) for update in np.unique(column.finite.values)]


def _size(snapshot: Snapshot) -> str:
    if snapshot.size is None or snapshot.added is None:
        return "of unknown size"
    return f"{snapshot.size:,} bytes, {snapshot.added:,} of them new"


def _journal(run: Recorded, when: _Clock) -> Iterator[Event]:
    for snapshot in run.kept.snapshots:
        if snapshot.journalled is not None:
            first, last = snapshot.journalled
            text = f"updates {first} to {last} are in the journal, after the snapshot of {snapshot.update}"
            yield Event("journal", first, last, when.at(first), when.at(last), text, "good")


def _decisions(run: Recorded, when: _Clock) -> Iterator[Event]:
    for update, what, why in run.kept.decisions:
        yield Event("decisions", update, None, when.at(update), None, f"{what}: {why}" if why else what)
