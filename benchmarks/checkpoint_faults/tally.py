"""Counts of what survived, by kind of fault."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.checkpoint_faults.classes import CLASSES, by_class
from benchmarks.checkpoint_faults.oracle import Verdict

EXAMPLES = 5


@dataclass
class Row:
    """One kind of fault at one contender.

    Args:
        injected: Faults.
        survived, refused, lost: What came of them.
        examples: The first few that did not survive.
    """

    injected: int = 0
    survived: int = 0
    refused: int = 0
    lost: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, verdict: Verdict, where: str) -> None:
        self.injected += 1
        setattr(self, verdict.outcome, getattr(self, verdict.outcome) + 1)
        if verdict.outcome != "survived" and len(self.examples) < EXAMPLES:
            self.examples.append(f"{where}: {verdict.outcome}: {verdict.why}")


@dataclass
class Tally:
    """Rows by contender and kind of fault, in the order in which they came.

    Args:
        rows: Of what came so far.
        told: Called with each verdict.
    """

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    told: Callable[[], None] = lambda: None

    def add(self, contender: str, kind: str, verdict: Verdict, where: str) -> None:
        self.rows.setdefault((contender, kind), Row()).add(verdict, where)
        self.told()

    def to_json(self) -> list[dict[str, Any]]:
        return [{"contender": contender, "fault": kind, **vars(row)} for (contender, kind), row in self.rows.items()]


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Markdown: a row for each class of faults, a column for each contender; survived / injected."""
    rows = list(rows)
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    lines = ["| fault | what is done | " + " | ".join(contenders) + " |", "|---|---|" + "---|" * len(contenders)]
    what = {each.name: each.what for each in CLASSES}
    for name, counts in by_class(rows).items():
        cells = [_cell(counts.get(contender)) for contender in contenders]
        lines.append(f"| {name} | {what[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(counts: dict[str, int] | None) -> str:
    if counts is None:
        return "–"
    ends = [f"{counts[end]:,} {end}" for end in ("refused", "lost") if counts[end]]
    rest = f" ({', '.join(ends)})" if ends else ""
    return f"{counts['survived']:,} / {counts['injected']:,}{rest}"
