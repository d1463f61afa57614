"""Counts of what survived, by kind of fault."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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
    """Rows by contender and kind of fault, in the order in which they came."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)

    def add(self, contender: str, kind: str, verdict: Verdict, where: str) -> None:
        self.rows.setdefault((contender, kind), Row()).add(verdict, where)

    def to_json(self) -> list[dict[str, Any]]:
        return [{"contender": contender, "fault": kind, **vars(row)} for (contender, kind), row in self.rows.items()]


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Markdown: a row for each kind of fault, a column for each contender; survived / injected."""
    rows = list(rows)
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    lines = [
        "| fault | " + " | ".join(contenders) + " |",
        "|---|" + "---|" * len(contenders),
    ]
    found = {(row["contender"], row["fault"]): row for row in rows}
    for kind in dict.fromkeys(row["fault"] for row in rows):
        cells = [_cell(found.get((contender, kind))) for contender in contenders]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    silent = f", {row['lost']} lost" if row["lost"] else ""
    refused = f", {row['refused']} refused" if row["refused"] else ""
    return f"{row['survived']} / {row['injected']}{refused}{silent}"
