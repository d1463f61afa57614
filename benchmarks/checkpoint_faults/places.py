"""Where a contender saves: a place that outlives its processes, can be copied, and may lose what is not durable."""

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.checkpoint_faults.contenders import Session
from benchmarks.checkpoint_faults.crashes import cut_off
from benchmarks.checkpoint_faults.disk import Contents, Disk

Hook = Callable[[int, Any], Any]
OpenSession = Callable[[Disk], Session]


class Place(Protocol):
    """What the oracle and the faults need to know of it."""

    def process(self, hook: Hook | None = None) -> Session:
        """Start a process; the hook is called before each of its operations with their number."""

    def copy(self) -> "Place": ...

    def after_power_cut(self) -> "Place":
        """A copy without all that is not durable."""


@dataclass(frozen=True)
class DiskPlace:
    """A folder on a disk.

    Args:
        contents: What is on it.
        open_session: Starts a contender's process there.
    """

    contents: Contents
    open_session: OpenSession

    def process(self, hook: Hook | None = None) -> Session:
        return self.open_session(Disk(self.contents, hook))

    def copy(self) -> "DiskPlace":
        return DiskPlace(self.contents.copy(), self.open_session)

    def after_power_cut(self) -> "DiskPlace":
        return DiskPlace(cut_off(self.contents, set(), {}), self.open_session)


@dataclass(frozen=True)
class Moment:
    """What was known when the log had a certain length.

    Args:
        operations: That length.
        acknowledged: The last update whose save had returned.
        attempted: The last update whose save had begun.
    """

    operations: int
    acknowledged: int
    attempted: int


@dataclass(frozen=True)
class Workload:
    """Processes, one after the other, and the updates that each saves; later ones restore first.

    Args:
        processes: Updates by process.
    """

    processes: tuple[tuple[int, ...], ...]


class Course:
    """A workload as it went.

    Args:
        start: Starts a process.
        log: What was done to the place so far.
    """

    def __init__(self, start: Callable[[], Session], log: Sized) -> None:
        self._start = start
        self._log = log
        self._acknowledged = self._attempted = 0
        self.moments = [Moment(0, 0, 0)]
        self.untyped: str | None = None

    def run(self, workload: Workload) -> None:
        """Carry it out. A save that fails is not acknowledged; a process that cannot restore is started again."""
        for process in workload.processes:
            session = self._started()
            for update in process:
                self._attempted = update
                self._note()
                if self._did(session, lambda session=session, update=update: session.save(update)):
                    self._acknowledged = update
                    self._note()
            session.end()

    @property
    def last(self) -> Moment:
        return self.moments[-1]

    def at(self, operations: int) -> Moment:
        """What was known before an operation."""
        return [moment for moment in self.moments if moment.operations <= operations][-1]

    def _started(self) -> Session:
        for _ in range(3):
            session = self._start()
            if self._did(session, session.restore):
                break
            session.end()
        return session

    def _did(self, session: Session, action: Callable[[], object]) -> bool:
        try:
            action()
        except Exception as error:
            if not session.expects(error):
                self.untyped = f"{type(error).__name__}: {error}"
            return False
        return True

    def _note(self) -> None:
        self.moments.append(Moment(len(self._log), self._acknowledged, self._attempted))
