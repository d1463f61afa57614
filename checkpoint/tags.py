"""Tags: names that people give to snapshots, which stay as long as the tag does."""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from gradwire.checkpoint.commit import Commit, seal
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.document import FORMAT, load
from gradwire.checkpoint.errors import DamagedCheckpoint, MissingObject, NoCheckpoint, TagError
from gradwire.checkpoint.store import Store

LONGEST_TAG = 2**16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Tag:
    """A name for a commit.

    Args:
        name: 1 to 100 letters, digits, dots, dashes and underscores, the first a letter or digit; not digits alone,
            which are updates.
        sequence: Number of the commit.
        digest: The commit's digest.
        created: When, ISO 8601 in UTC.
    """

    name: str
    sequence: int
    digest: str
    created: str

    def to_bytes(self) -> bytes:
        return seal(
            {
                "format": FORMAT,
                "kind": "tag",
                "name": self.name,
                "sequence": self.sequence,
                "commit": self.digest,
                "created": self.created,
            }
        )


def parse_tag(data: bytes, name: str, where: str) -> Tag:
    """The tag in an object of `tags/`.

    Args:
        data: The object.
        name: The tag's name.
        where: The object's name, for messages.

    Raises:
        DamagedCheckpoint: it is cut short, altered or misplaced.
        UnsupportedFormat: it was written in a newer format.
    """
    document = data[: max(len(data) - 66, 0)]
    if data != b"%s\n%s\n" % (document, hashlib.sha256(document).hexdigest().encode()):
        raise DamagedCheckpoint(f"{where} is cut short or altered: its digest does not fit")
    fields = load(document, where)
    if fields.text("kind") != "tag":
        raise fields.damaged("kind", "expected 'tag'")
    if fields.text("name") != name:
        raise fields.damaged("name", f"expected {name!r}")
    return Tag(name, fields.integer("sequence", 1), fields.sha256("commit"), fields.text("created"))


@dataclass(frozen=True)
class TagList:
    """The tags of a store at one moment.

    Args:
        tags: The readable ones, by name.
        damaged: What is wrong with each of the others, by its name.
    """

    tags: tuple[Tag, ...]
    damaged: dict[str, DamagedCheckpoint]

    def names(self, sequence: int) -> tuple[str, ...]:
        """Names of the tags of a commit."""
        return tuple(tag.name for tag in self.tags if tag.sequence == sequence)


class Tags:
    """Gives snapshots names, and finds them again.

    Args:
        store: Where the snapshots are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, name: str, commit: Commit) -> Tag:
        """Name a snapshot; a tag that names it already is left as it is.

        Raises:
            TagError: the name is not allowed, or names another snapshot.
            NoCheckpoint: the snapshot was removed meanwhile.
            StoreError: the tag could not be written.
        """
        _check(name)
        tag = Tag(name, commit.sequence, commit.digest, datetime.now(UTC).isoformat(timespec="milliseconds"))
        if not self._store.put_new(_object(name), tag.to_bytes()):
            present = self.read(name)
            if (present.sequence, present.digest) != (tag.sequence, tag.digest):
                raise TagError(
                    f"{self._store.url}: the tag {name!r} names another snapshot (number {present.sequence}, since "
                    f"{present.created}); choose another name, or delete that tag first"
                )
            tag = present
        if not CommitLog(self._store).holds(commit.sequence):  # now that the tag is seen by whoever prunes
            self._store.delete(_object(name))
            raise NoCheckpoint(f"{self._store.url}: the snapshot of update {commit.update} was removed meanwhile")
        return tag

    def read(self, name: str) -> Tag:
        """The tag of a name.

        Raises:
            TagError: the name is not allowed, or there is no such tag.
            DamagedCheckpoint: the tag is altered.
            StoreError: it could not be read.
        """
        _check(name)
        where = f"{self._store.url}: {_object(name)}"
        try:
            return parse_tag(self._store.get(_object(name), LONGEST_TAG), name, where)
        except MissingObject as error:
            have = ", ".join(self.names()) or "none"
            raise TagError(f"{self._store.url} has no tag {name!r}; it has: {have}") from error

    def delete(self, name: str) -> None:
        """Take a name away; its snapshot stays until retention removes it.

        Raises:
            TagError: the name is not allowed, or there is no such tag.
            StoreError: it could not be deleted.
        """
        _check(name)
        if name not in self.names():
            have = ", ".join(self.names()) or "none"
            raise TagError(f"{self._store.url} has no tag {name!r}; it has: {have}")
        self._store.delete(_object(name))

    def names(self) -> list[str]:
        """All names, sorted.

        Raises:
            StoreError: the listing failed.
        """
        return [name.removeprefix("tags/") for name in self._store.list("tags")]

    def all(self) -> TagList:
        """All tags. One that is deleted meanwhile is left out.

        Raises:
            UnsupportedFormat: one was written in a newer format.
            StoreError: the listing failed, or a tag could not be read.
        """
        tags: list[Tag] = []
        damaged: dict[str, DamagedCheckpoint] = {}
        for name in self.names():
            try:
                tags.append(parse_tag(self._store.get(_object(name), LONGEST_TAG), name, f"{self._store.url}: {name}"))
            except MissingObject:
                continue
            except DamagedCheckpoint as error:
                damaged[name] = error
        return TagList(tuple(tags), damaged)


def _object(name: str) -> str:
    return f"tags/{name}"


def _check(name: str) -> None:
    if not _NAME.fullmatch(name) or name.isdigit():
        raise TagError(
            f"{name[:120]!r} cannot be a tag: a tag has 1 to 100 letters, digits, dots, dashes and underscores, begins "
            "with a letter or digit, and is no number (numbers are updates)"
        )
