"""Commits and writers' epochs: the numbered documents that make a snapshot count."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradwire.checkpoint import tree
from gradwire.checkpoint.document import FORMAT, Fields, dump, load
from gradwire.checkpoint.errors import DamagedCheckpoint
from gradwire.checkpoint.snapshot import PartRef

LONGEST_COMMIT = 16 * 2**20
Reason = Literal["interval", "end", "preempted"]
Ancestry = tuple[tuple[int, int], ...]


def commit_name(sequence: int) -> str:
    return f"commits/{sequence:020d}"


@dataclass(frozen=True)
class Writer:
    """Who wrote.

    Args:
        identity: For people: host and process, or what the user said.
        nonce: Random, so that a writer knows its own documents.
    """

    identity: str
    nonce: str

    def to_json(self) -> dict[str, str]:
        return {"identity": self.identity, "nonce": self.nonce}

    @classmethod
    def from_json(cls, fields: Fields) -> "Writer":
        return cls(fields.text("identity"), fields.text("nonce"))


@dataclass(frozen=True)
class Parent:
    """The commit that a writer continued from.

    Args:
        sequence: Its number.
        digest: Its digest.
    """

    sequence: int
    digest: str


@dataclass(frozen=True)
class Epoch:
    """A writer's claim: from this number on, writers of earlier epochs cannot commit.

    Args:
        sequence: Its place in the sequence of commits, which is also the epoch's number.
        writer: Who claims.
        created: When, ISO 8601 in UTC.
    """

    sequence: int
    writer: Writer
    created: str

    def to_bytes(self) -> bytes:
        return seal(
            {
                "format": FORMAT,
                "kind": "epoch",
                "sequence": self.sequence,
                "writer": self.writer.to_json(),
                "created": self.created,
            }
        )


@dataclass(frozen=True)
class Commit:
    """A snapshot that counts.

    Args:
        sequence: Its place in the sequence of commits; not the update.
        parent: The commit that the run continued from or saved before; None for the first of a run.
        ancestry: Intervals of the sequence, ends included; the commits in them led to this one.
        epoch: Number of the writer's epoch.
        writer: Who wrote it.
        created: When, ISO 8601 in UTC.
        reason: `interval`, `end` or `preempted`.
        clock: Where the run was: `updates`, and whatever else the caller counts.
        metrics: Measured values at this update.
        world_size: Number of ranks that saved.
        captured: Top-level names of the shared tree, and of the ranks' own trees.
        parts: One per rank, in order.
    """

    sequence: int
    parent: Parent | None
    ancestry: Ancestry
    epoch: int
    writer: Writer
    created: str
    reason: str
    clock: Mapping[str, int | float]
    metrics: Mapping[str, float]
    world_size: int
    captured: Mapping[str, tuple[str, ...]]
    parts: tuple[PartRef, ...]

    @property
    def update(self) -> int:
        """Number of updates that led to this state."""
        return int(self.clock["updates"])

    @property
    def name(self) -> str:
        return commit_name(self.sequence)

    @property
    def digest(self) -> str:
        """SHA-256 of the document."""
        return hashlib.sha256(self._document()).hexdigest()

    def to_bytes(self) -> bytes:
        return _sealed(self._document())

    def _document(self) -> bytes:
        return dump(
            {
                "format": FORMAT,
                "kind": "commit",
                "sequence": self.sequence,
                "parent": self.parent and {"sequence": self.parent.sequence, "sha256": self.parent.digest},
                "ancestry": [list(interval) for interval in self.ancestry],
                "epoch": self.epoch,
                "writer": self.writer.to_json(),
                "created": self.created,
                "reason": self.reason,
                "clock": {name: tree.encode_scalar(value, f"clock.{name}") for name, value in self.clock.items()},
                "metrics": {name: tree.encode_scalar(value, f"metrics.{name}") for name, value in self.metrics.items()},
                "world_size": self.world_size,
                "captured": {kind: list(names) for kind, names in self.captured.items()},
                "parts": [part.to_json() for part in self.parts],
            }
        )


def seal(values: Mapping[str, Any]) -> bytes:
    """A document with the digest of its line in a second one."""
    return _sealed(dump(values))


def _sealed(document: bytes) -> bytes:
    return b"%s\n%s\n" % (document, hashlib.sha256(document).hexdigest().encode())


def parse_entry(data: bytes, sequence: int, where: str) -> Commit | Epoch:
    """The commit or epoch in an object of `commits/`.

    Args:
        data: The object.
        sequence: The number that names it.
        where: Its name, for messages.

    Raises:
        DamagedCheckpoint: it is cut short, altered, misplaced or contradicts itself.
        UnsupportedFormat: it was written in a newer format.
    """
    document = data[: max(len(data) - 66, 0)]
    if data != _sealed(document):
        raise DamagedCheckpoint(f"{where} is cut short or altered: its digest does not fit")
    fields = load(document, where)
    if fields.integer("sequence") != sequence:
        raise fields.damaged("sequence", f"expected {sequence}")
    kind = fields.text("kind")
    if kind == "epoch":
        return Epoch(sequence, Writer.from_json(fields.fields("writer")), fields.text("created"))
    if kind == "commit":
        return _commit(fields, sequence, where)
    raise fields.damaged("kind", "expected 'commit' or 'epoch'")


def _commit(fields: Fields, sequence: int, where: str) -> Commit:
    parent = fields.optional("parent")
    captured = fields.fields("captured")
    parts: tuple[PartRef, ...] = fields.each("parts", PartRef.from_json)
    world_size = fields.integer("world_size", 1)
    if len(parts) != world_size or any(part.rank != rank for rank, part in enumerate(parts)):
        raise DamagedCheckpoint(f"{where} does not list one part for each of its {world_size} ranks")
    commit = Commit(
        sequence=sequence,
        parent=None if parent is None else Parent(parent.integer("sequence", 1, sequence - 1), parent.sha256("sha256")),
        ancestry=_ancestry(fields, sequence),
        epoch=fields.integer("epoch", 1, sequence - 1),
        writer=Writer.from_json(fields.fields("writer")),
        created=fields.text("created"),
        reason=fields.text("reason"),
        clock=_numbers(fields.fields("clock")),
        metrics=_numbers(fields.fields("metrics")),
        world_size=world_size,
        captured={kind: _names(captured, kind) for kind in ("shared", "local")},
        parts=parts,
    )
    if type(commit.clock.get("updates")) is not int or commit.update < 0:
        raise DamagedCheckpoint(f"{where}: its clock counts no updates")
    return commit


def _ancestry(fields: Fields, sequence: int) -> Ancestry:
    intervals = fields.list("ancestry")
    last = -1
    for interval in intervals:
        if not isinstance(interval, list) or len(interval) != 2 or not all(type(end) is int for end in interval):
            raise fields.damaged("ancestry", "expected pairs of numbers")
        if not last + 1 < interval[0] <= interval[1]:
            raise fields.damaged("ancestry", "expected rising intervals that do not touch")
        last = interval[1]
    if last != sequence:
        raise fields.damaged("ancestry", f"expected it to end at {sequence}")
    return tuple((start, end) for start, end in intervals)


def _numbers(fields: Fields) -> dict[str, Any]:
    values = {name: tree.decode_scalar(node, f"{fields.where}, {name}") for name, node in fields.values.items()}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise fields.damaged(name, "expected a number")
    return values


def _names(fields: Fields, kind: str) -> tuple[str, ...]:
    names = fields.list(kind)
    if not all(isinstance(name, str) for name in names):
        raise fields.damaged(kind, "expected names")
    return tuple(names)


def followed_by(ancestry: Ancestry, start: int, sequence: int) -> Ancestry:
    """The ancestry of a commit at `sequence` whose writer has held the numbers since `start`."""
    if ancestry and ancestry[-1][1] + 1 >= start:
        return (*ancestry[:-1], (ancestry[-1][0], sequence))
    return (*ancestry, (start, sequence))


def leads_to(sequence: int, commit: Commit) -> bool:
    """Whether the commit at `sequence` is `commit` or an ancestor of it."""
    return any(start <= sequence <= end for start, end in commit.ancestry)
