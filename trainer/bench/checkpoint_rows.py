"""What the contest of checkpoints found, as figures, ratios of paired rounds, and text."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradwire.checkpoint.benchmark import OURS, Measured, Recovered
from gradwire.comm.benchmark.paired import compare, interval

Interval = tuple[float, float, float]
STEPS = ("stall", "durable", "warm", "cold")
TITLES = {"stall": "stall", "durable": "durable", "warm": "restore", "cold": "restore, cold"}


@dataclass(frozen=True)
class Row:
    """One contender. Seconds and bytes by round; intervals are a median with its 95 % bootstrap interval.

    Attributes:
        stall: Seconds until training might go on.
        durable: Seconds until the state was durable.
        warm: Seconds that restoring took, with the disk's cache as it was.
        cold: The same without the cache; empty where it could not be dropped.
        plain: Seconds in which plain reading of its files gives as many bytes, without the cache; gradwire's only.
        written: Bytes of new files.
        over_ours: By step, how many times as long as gradwire.
        written_share: Bytes of new files for each byte of the state; the median.
        of_disk: Bytes of the state restored in a second over those that plain reading gives, without the cache.
    """

    stall: tuple[float, ...]
    durable: tuple[float, ...]
    warm: tuple[float, ...]
    cold: tuple[float, ...]
    plain: tuple[float, ...]
    written: tuple[int, ...]
    over_ours: dict[str, Interval]
    written_share: float
    of_disk: Interval | None

    def milliseconds(self, step: str) -> float | None:
        """The median of a step."""
        seconds = getattr(self, step)
        return 1e3 * statistics.median(seconds) if seconds else None


def rows(measured: Mapping[str, Measured], nbytes: int) -> dict[str, Row]:
    """A row for every contender.

    Args:
        measured: By contender.
        nbytes: Of the state.
    """
    return {name: _row(found, measured.get(OURS), nbytes) for name, found in measured.items()}


def _row(found: Measured, ours: Measured | None, nbytes: int) -> Row:
    over = {step: compare(getattr(found, step), getattr(ours, step)) for step in STEPS if ours and getattr(found, step)}
    stored = [bytes_ / nbytes for bytes_ in found.written]
    return Row(
        tuple(found.stall),
        tuple(found.durable),
        tuple(found.warm),
        tuple(found.cold),
        tuple(found.plain),
        tuple(found.written),
        over,
        statistics.median(stored),
        compare(found.plain, found.cold) if found.plain else None,
    )


def to_text(table: Mapping[str, Row]) -> str:
    """The table."""
    return "\n".join(_lines(table))


def _lines(table: Mapping[str, Row]) -> Iterator[str]:
    steps = [step for step in STEPS if any(getattr(row, step) for row in table.values())]
    yield f"\n{'':22}" + "".join(f"{TITLES[step] + ', ms':>32}" for step in steps) + f"{'written':>12}"
    for name, row in table.items():
        cells = "".join(f"{_cell(row, step, name):>32}" for step in steps)
        yield f"{name:22}{cells}{row.written_share:>11.1%}"
    for name, row in table.items():
        if row.of_disk is not None:
            ratio, low, high = row.of_disk
            yield f"{name}: restores at {ratio:.2f} [{low:.2f}, {high:.2f}] of the speed at which the disk is read"


def _cell(row: Row, step: str, name: str) -> str:
    median = row.milliseconds(step)
    if median is None:
        return "-"
    ratio = (
        "" if name == OURS or step not in row.over_ours else "  × {:.2f} [{:.2f}, {:.2f}]".format(*row.over_ours[step])
    )
    return f"{median:,.1f}{ratio}"


def recovery_line(recovered: Sequence[Recovered]) -> str:
    """What recovery took."""
    if not recovered:
        return ""
    total, low, high = (1e3 * value for value in interval([each.restoring + each.replaying for each in recovered]))
    restoring = 1e3 * statistics.median(each.restoring for each in recovered)
    waited = 1e3 * statistics.median(each.appending for each in recovered)
    written = statistics.median(each.written for each in recovered) / 1e6
    return (
        f"gradwire: recovery of a snapshot and {recovered[0].updates} journalled updates {total:,.0f} ms "
        f"[{low:,.0f}, {high:,.0f}], {restoring:,.0f} of them for the snapshot; an update waited {waited:,.1f} ms for "
        f"its durable journal, {written:,.2f} MB; the others begin again at the snapshot"
    )
