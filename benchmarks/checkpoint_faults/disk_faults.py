"""Faults of a disk and of the process above it, at every operation of a workload."""

import errno
import os
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from benchmarks.checkpoint_faults.choices import EVERYTHING, Choice, kind_of
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
    choice: Choice = EVERYTHING,
) -> None:
    """Kills and power cuts at every operation that is chosen. Equal disks are judged once and counted each time.

    Args:
        name: The contender's.
        open_session: Starts a process.
        workload: What is done.
        tally: Where verdicts go.
        start: The disk before.
        choices: Random subsets of what is not durable, at each operation.
        choice: Which operations, and what may have become of them.
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

    kinds = [kind_of(operation) for operation in disk.log]
    journal = ", on a file system with a journal" if start.ordered else ""
    for number, cases in _chosen(kills(disk.log, start.copy()), kinds, choice) if not start.ordered else ():
        for label, contents in cases:
            judged(number, number, label, contents, f"killed {label.replace('torn:', 'within a write:')}")
    for number, cases in _chosen(power_cuts(disk.log, start.copy(), choices, seed=0), kinds, choice):
        for label, contents in cases:
            judged(number, number + 1, f"{label} after", contents, f"power cut, {label}{journal}")


def _chosen(
    cases: Iterator[tuple[int, str, Contents]], kinds: list[str], choice: Choice
) -> Iterator[tuple[int, Sequence[tuple[str, Contents]]]]:
    """The chosen cases of each chosen operation."""
    chosen = set(takewhile(lambda number: number < len(kinds), choice.numbers(lambda: kinds)))
    for number, of_one in groupby(cases, lambda case: case[0]):
        if number in chosen:
            yield number, choice.some((label, contents) for _, label, contents in of_one)


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
    name: str,
    open_session: OpenSession,
    workload: Workload,
    tally: Tally,
    start: Contents,
    choice: Choice = EVERYTHING,
) -> None:
    """Errors at every operation that is chosen, while the process goes on; then it ends, or the power goes."""
    for fault in DISK_FAULTS:
        for number in choice.numbers(lambda fault=fault: _kinds(open_session, workload, start, fault)):
            met = fail_at(open_session, workload, start, fault, number, choice)
            if met is None:
                break
            where = f"operation {number} ({_said(met.operation)})"
            for kind, verdict in met.verdicts:
                tally.add(name, kind, verdict, where)


def _kinds(open_session: OpenSession, workload: Workload, start: Contents, fault: DiskFault) -> list[str]:
    """Kinds of the operations that a fault could strike first."""
    disk = Disk(start.copy())
    Course(lambda: open_session(disk), disk.log).run(workload)
    return [kind_of(operation) for operation in disk.log if fault.strikes(operation)]


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
    open_session: OpenSession, workload: Workload, start: Contents, fault: DiskFault, number: int, choice: Choice
) -> Met | None:
    """Let the `number`-th operation that the fault can strike fail; None where there are fewer."""
    met = 0
    struck: Operation | None = None
    one_at_a_time = threading.Lock()  # a process has several threads

    def hook(_: int, operation: Operation) -> None:
        nonlocal met, struck
        if not fault.strikes(operation):
            return
        with one_at_a_time:
            met += 1
            strikes = met == number + 1 or (fault.lasting and met > number)
            struck = struck or (operation if strikes else None)
        if strikes:
            raise OSError(fault.number, os.strerror(fault.number), operation.path)

    disk = Disk(start.copy(), hook)
    course = Course(lambda: open_session(disk), disk.log)
    course.run(workload)
    if struck is None:
        return None
    if course.untyped:
        return Met(struck, [(fault.name, Verdict("lost", f"an error without a class: {course.untyped}"))])
    return Met(struck, list(_afterwards(open_session, disk.contents, course.last, fault.name, choice)))


def _afterwards(
    open_session: OpenSession, contents: Contents, known: Moment, name: str, choice: Choice
) -> Iterator[tuple[str, Verdict]]:
    """The process ends; or the power goes with it."""
    seen: set[str] = set()
    cut = choice.some((f"{name}, then a power cut", cut) for _, cut in cuts(contents, 2, random.Random(name)))
    for kind, end in ((name, contents), *cut):
        if (digest := end.digest()) in seen:
            continue
        seen.add(digest)
        judgment = judge(DiskPlace(end, open_session), known)
        yield kind, judgment.now
        if judgment.later:
            yield LATER_LIVE, judgment.later
