"""Faults of a disk and of the process above it, at every operation of a workload."""

import errno
import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.checkpoint_faults.crashes import cuts, kills, power_cuts
from benchmarks.checkpoint_faults.disk import Contents, Disk, Operation
from benchmarks.checkpoint_faults.oracle import Judgment, Verdict, judge
from benchmarks.checkpoint_faults.places import Course, DiskPlace, Moment, OpenSession, Workload
from benchmarks.checkpoint_faults.tally import Tally

LATER = "power cut after the save that follows a crash"
LATER_LIVE = "power cut after the save that follows an error"


def crash_everywhere(
    name: str,
    open_session: OpenSession,
    workload: Workload,
    tally: Tally,
    start: Contents,
    choices: int = 6,
    every: int = 1,
) -> None:
    """Kills and power cuts at every operation (or each `every`-th). Equal disks are judged once and counted each time.

    Args:
        name: The contender's.
        open_session: Starts a process.
        workload: What is done.
        tally: Where verdicts go.
        start: The disk before.
        choices: Random subsets of what is not durable, at each operation.
        every: Which operations.
    """
    disk = Disk(start.copy())
    course = Course(lambda: open_session(disk), disk.log)
    course.run(workload)
    judgments: dict[tuple[str, int, int], Judgment] = {}

    def judged(number: int, known: int, label: str, contents: Contents, kind: str) -> None:
        moment = course.at(known)
        key = contents.digest(), moment.acknowledged, moment.attempted
        if key not in judgments:
            judgments[key] = judge(DiskPlace(contents, open_session), moment)
        where = f"{label} operation {number} ({_said(disk.log[number])})"
        tally.add(name, kind, judgments[key].now, where)
        if judgments[key].later:
            tally.add(name, f"{LATER}{journal}", judgments[key].later, where)

    journal = ", on a file system with a journal" if start.ordered else ""
    for number, label, contents in kills(disk.log, start.copy()) if not start.ordered else ():
        if number % every == 0:
            judged(number, number, label, contents, f"killed {label.replace('torn:', 'within a write:')}")
    for number, label, contents in power_cuts(disk.log, start.copy(), choices, seed=0):
        if number % every == 0:
            judged(number, number + 1, f"{label} after", contents, f"power cut, {label}{journal}")


def _said(operation: Operation) -> str:
    return f"{operation.kind} {operation.path}"


_READING = frozenset(("read", "names", "size", "modified"))
_TAKING = frozenset(("create", "write", "sync", "link", "rename", "make_folder", "sync_folder"))


@dataclass(frozen=True)
class DiskFault:
    """What goes wrong.

    Args:
        name: For the table.
        number: The operating system's error.
        kinds: Operations that it strikes; None for all.
        lasting: Whether it strikes all operations from then on, to the end of the process's saves.
    """

    name: str
    number: int
    kinds: frozenset[str] | None
    lasting: bool = False

    def strikes(self, operation: Operation) -> bool:
        return self.kinds is None or operation.kind in self.kinds


DISK_FAULTS = (
    DiskFault("EIO, once", errno.EIO, None),
    DiskFault("EIO on reading, from then on", errno.EIO, _READING, lasting=True),
    DiskFault("EIO, from then on", errno.EIO, None, lasting=True),
    DiskFault("ENOSPC, once", errno.ENOSPC, _TAKING),
    DiskFault("ENOSPC, from then on", errno.ENOSPC, _TAKING, lasting=True),
    DiskFault("fsync of a file fails", errno.EIO, frozenset(("sync",))),
    DiskFault("fsync of a folder fails", errno.EIO, frozenset(("sync_folder",))),
    DiskFault("read-only from then on", errno.EROFS, _TAKING | {"unlink", "remove_folder"}, lasting=True),
)


def fail_everywhere(
    name: str, open_session: OpenSession, workload: Workload, tally: Tally, start: Contents, every: int = 1
) -> None:
    """Errors at every operation (or each `every`-th) while the process goes on; then it ends, or the power goes."""
    for fault in DISK_FAULTS:
        for number in itertools.count(0, every):
            met = fail_at(open_session, workload, start, fault, number)
            if met is None:
                break
            where = f"operation {number} ({_said(met.operation)})"
            for kind, verdict in met.verdicts:
                tally.add(name, kind, verdict, where)


@dataclass(frozen=True)
class Met:
    """A fault that was met.

    Args:
        operation: Where.
        verdicts: By name of the kind.
    """

    operation: Operation
    verdicts: list[tuple[str, Verdict]]


def fail_at(
    open_session: OpenSession, workload: Workload, start: Contents, fault: DiskFault, number: int
) -> Met | None:
    """Let the `number`-th operation that the fault can strike fail; None where there are fewer."""
    met = 0
    struck: Operation | None = None

    def hook(_: int, operation: Operation) -> None:
        nonlocal met, struck
        if not fault.strikes(operation):
            return
        met += 1
        if met == number + 1 or (fault.lasting and met > number):
            struck = struck or operation
            raise OSError(fault.number, os.strerror(fault.number), operation.path)

    disk = Disk(start.copy(), hook)
    course = Course(lambda: open_session(disk), disk.log)
    course.run(workload)
    if struck is None:
        return None
    if course.untyped:
        return Met(struck, [(fault.name, Verdict("lost", f"an error without a class: {course.untyped}"))])
    return Met(struck, list(_afterwards(open_session, disk.contents, course.last, fault.name)))


def _afterwards(
    open_session: OpenSession, contents: Contents, known: Moment, name: str
) -> Iterator[tuple[str, Verdict]]:
    """The process ends; or the power goes with it."""
    seen: set[str] = set()
    ends = [(name, contents)]
    ends += [(f"{name}, then a power cut", cut) for _, cut in cuts(contents, 2, random.Random(name))]
    for kind, end in ends:
        if (digest := end.digest()) in seen:
            continue
        seen.add(digest)
        judgment = judge(DiskPlace(end, open_session), known)
        yield kind, judgment.now
        if judgment.later:
            yield LATER_LIVE, judgment.later
