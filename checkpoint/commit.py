"""Commits and writers' epochs: the numbered documents that make a snapshot count."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradwire.checkpoint import tree
from gradwire.checkpoint.ancestry import Ancestry, read_ancestry
from gradwire.checkpoint.document import FORMAT, LARGEST, Fields, dump, load
from gradwire.checkpoint.errors import DamagedCheckpoint, UnsupportedState
from gradwire.checkpoint.snapshot import PartRef

LONGEST_COMMIT = 16 * 2**20
Reason = Literal["interval", "end", "preempted"]


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
class Seal:
    """The last update of the epochs before that counts for a writer, and for all that follow it.

    Args:
        base: Number of the commit that the writer restored.
        epoch: The epoch in which the update was made: the commit's own, or that of a journal after it.
        update: The update: the commit's own, or the last one that was replayed.
    """

    base: int
    epoch: int
    update: int

    def to_json(self) -> dict[str, int]:
        return {"base": self.base, "epoch": self.epoch, "update": self.update}


@dataclass(frozen=True)
class Epoch:
    """A writer's claim: from this number on, writers of earlier epochs cannot commit.

    Args:
        sequence: Its place in the sequence of commits, which is also the epoch's number.
        writer: Who claims.
        created: When, ISO 8601 in UTC.
        seals: Where the writer goes on from; None for a run that starts anew.
        repairs: Whether that is the end of the present branch although newer commits may stand before the claim.
    """

    sequence: int
    writer: Writer
    created: str
    seals: Seal | None = None
    repairs: bool = False

    @property
    def name(self) -> str:
        return commit_name(self.sequence)

    def to_bytes(self) -> bytes:
        return seal(
            {
                "format": FORMAT,
                "kind": "epoch",
                "sequence": self.sequence,
                "writer": self.writer.to_json(),
                "created": self.created,
                "seals": self.seals and self.seals.to_json(),
                **({"repairs": True} if self.repairs else {}),
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
        not_captured: What has a state that was not saved.
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
    not_captured: tuple[str, ...] = ()

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
                "clock": {name: _count(value, f"clock.{name}") for name, value in self.clock.items()},
                "metrics": {name: tree.encode_scalar(value, f"metrics.{name}") for name, value in self.metrics.items()},
                "world_size": self.world_size,
                "captured": {kind: list(names) for kind, names in self.captured.items()},
                "not_captured": list(self.not_captured),
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
        writer, repairs = Writer.from_json(fields.fields("writer")), fields.values.get("repairs", False)
        if not isinstance(repairs, bool):
            raise fields.damaged("repairs", "expected true or false")
        return Epoch(sequence, writer, fields.text("created"), _seal(fields, sequence), repairs)
    if kind == "commit":
        return _commit(fields, sequence, where)
    raise fields.damaged("kind", "expected 'commit' or 'epoch'")


def parse_commit(data: bytes, sequence: int, where: str) -> Commit:
    """The commit that another rank told; arguments and errors as in `parse_entry`."""
    entry = parse_entry(data, sequence, where)
    if not isinstance(entry, Commit):
        raise DamagedCheckpoint(f"{where}: what was told is something else than a commit")
    return entry


def _seal(fields: Fields, sequence: int) -> Seal | None:
    seal = fields.optional("seals")
    if seal is None:
        return None
    return Seal(seal.integer("base", 1, sequence - 1), seal.integer("epoch", 1, sequence - 1), seal.integer("update"))


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
        ancestry=read_ancestry(fields, sequence),
        epoch=fields.integer("epoch", 1, sequence - 1),
        writer=Writer.from_json(fields.fields("writer")),
        created=fields.text("created"),
        reason=fields.text("reason"),
        clock=_counts(fields.fields("clock")),
        metrics=_numbers(fields.fields("metrics")),
        world_size=world_size,
        captured={kind: _names(captured, kind) for kind in ("shared", "local")},
        parts=parts,
        not_captured=_names(fields, "not_captured"),
    )
    if type(commit.clock.get("updates")) is not int or commit.update < 0:
        raise DamagedCheckpoint(f"{where}: its clock counts no updates")
    return commit


def _count(value: int | float, path: str) -> Any:
    if isinstance(value, int) and abs(value) > LARGEST:
        raise UnsupportedState(f"{path} is a whole number of {value.bit_length()} bits: a clock counts to {LARGEST}")
    return tree.encode_scalar(value, path)


def _counts(fields: Fields) -> dict[str, Any]:
    values = _numbers(fields)
    for name, value in values.items():
        if isinstance(value, int) and abs(value) > LARGEST:
            raise fields.damaged(name, f"expected a number of at most {LARGEST}")
    return values


def _numbers(fields: Fields) -> dict[str, Any]:
    values = {name: tree.decode_scalar(node, f"{fields.where}, {name[:80]}") for name, node in fields.values.items()}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise fields.damaged(name, "expected a number")
    return values


def _names(fields: Fields, kind: str) -> tuple[str, ...]:
    names = fields.list(kind)
    if not all(isinstance(name, str) for name in names):
        raise fields.damaged(kind, "expected names")
    return tuple(names)
