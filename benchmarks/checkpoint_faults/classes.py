"""Kinds of faults put together in classes, as the documentation shows them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_COUNTS = ("injected", "survived", "refused", "lost")


@dataclass(frozen=True)
class Class:
    """Kinds of faults that are alike.

    Args:
        name: For the table.
        what: What is done to whoever saves.
        kinds: Pattern for the beginning of the names of its kinds.
    """

    name: str
    what: str
    kinds: str


CLASSES = (
    Class(
        "killed between operations",
        "the process ends before or after an operation; what it did can be read",
        "killed (before|after)",
    ),
    Class(
        "killed within a write",
        "of the bytes of one write none, one, half, or all but the last are in the file",
        "killed within a write",
    ),
    Class(
        "power cut, all lost",
        "all that no fsync made durable is gone: bytes of files, names in folders",
        "power cut, everything lost$",
    ),
    Class(
        "power cut, lost or reordered",
        "of that, each change alone, all but each, and random ones are there; bytes whole, torn, or as zeros",
        "power cut, some of it lost$",
    ),
    Class(
        "power cut, names in order",
        "on a file system with a journal: changes of names are lost from some moment on",
        "power cut, .*on a file system with a journal",
    ),
    Class("EIO", "one operation fails, or all reading from then on, or everything", "EIO, [^,]*$|EIO on [^,]*, [^,]*$"),
    Class("ENOSPC", "the disk is full for one operation, or from then on", "ENOSPC, [^,]*$"),
    Class(
        "failed fsync",
        "of a file, whose bytes are then never durable (as on Linux), or of a folder",
        "fsync of a[^,]*$",
    ),
    Class("read-only", "the file system takes nothing any more from an operation on", "read-only[^,]*$"),
    Class(
        "error, then a power cut",
        "any of these errors, and at the end of the process a power cut",
        ".*then a power cut",
    ),
    Class(
        "restart, then a power cut",
        "a crash or an error, then a save by the next process, then a power cut that loses all it can",
        "power cut after the save that follows",
    ),
    Class("503", "the server is too busy for six requests, or from then on", "burst of 503|503 from then on"),
    Class("time-out before", "two requests are not answered, and not done", "time-outs before"),
    Class("time-out after", "a request, or three, are done and not answered", "time-outs? after the request"),
    Class(
        "late request",
        "requests that were not answered are done 1, 9 or 30 requests later",
        "time-outs?, the requests?",
    ),
    Class(
        "stale listing",
        "listings show what was there 1, 4 or 15 changes ago, once or from then on",
        "listings? stale",
    ),
    Class("short read", "half of an object arrives, once or from then on", "short reads?"),
    Class("two writers", "another process restores and saves twice before an operation of a save", "two writers"),
    Class("zombie", "a writer that was taken over goes on saving or journalling while the other saves", "zombie"),
    Class(
        "prune racing save",
        "a clean-up before an operation of a save, and a save before one of a clean-up; by the writer or by command",
        "prune racing a |prune command racing a |save racing a prune",
    ),
    Class(
        "prune racing restore",
        "the snapshot that is being read is removed meanwhile",
        "prune (command )?racing restore",
    ),
    Class(
        "repair racing save",
        "`fsck --repair` before an operation of a save, and a save before one of it",
        "fsck --repair racing|save racing fsck",
    ),
    Class(
        "clean-up killed",
        "`prune` and `fsck --repair` are killed before an operation",
        "(prune command|fsck --repair) killed",
    ),
)


def class_of(kind: str) -> Class:
    """The class that a kind of fault belongs to. Raises LookupError where that is not one."""
    found = [each for each in CLASSES if re.match(each.kinds, kind)]
    if len(found) != 1:
        raise LookupError(f"{kind!r} belongs to {[each.name for each in found]}, expected one class of faults")
    return found[0]


def by_class(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, int]]]:
    """Counts by class and contender, classes in their order.

    Args:
        rows: Results by kind, as Tally.to_json has them.
    """
    found: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        counts = found.setdefault(class_of(row["fault"]).name, {}).setdefault(
            row["contender"], dict.fromkeys(_COUNTS, 0)
        )
        for count in _COUNTS:
            counts[count] += row[count]
    return {each.name: found[each.name] for each in CLASSES if each.name in found}
