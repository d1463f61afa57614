"""One process beside another: it acts at one moment, or is killed at one."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.checkpoint_faults.choices import kind_of


class When:
    """A moment in the life of a process: before its `number`-th operation since it was let loose.

    A process may have several threads; the moment comes once.

    Args:
        number: Of the operation.
    """

    def __init__(self, number: int) -> None:
        self._left = number
        self._loose = False
        self._lock = threading.Lock()
        self.at: str | None = None
        self.kinds: list[str] = []

    def let_loose(self) -> None:
        self._loose = True

    @property
    def is_loose(self) -> bool:
        return self._loose

    def has_come(self, operation: Any) -> bool:
        """Whether it is now."""
        with self._lock:
            if not self._loose or self.at is not None:
                return False
            self.kinds.append(kind_of(operation))
            self._left -= 1
            if self._left >= 0:
                return False
            self.at = f"{operation.kind} {operation.path}"
            return True


class Intruder:
    """Acts once, at a moment of the other process.

    Args:
        when: The moment.
        act: What it does.
        keeping: Whether the other process cannot remove parts and packs before it was let loose.
    """

    def __init__(self, when: When, act: Callable[[], None], *, keeping: bool = False) -> None:
        self._when = when
        self._act = act
        self._keeping = keeping
        self.failure: Exception | None = None

    @property
    def at(self) -> str | None:
        return self._when.at

    def let_loose(self) -> None:
        self._when.let_loose()

    def __call__(self, _: int, operation: Any) -> None:
        if self._keeping and not self._when.is_loose:
            _refuse_removal(operation)
        if self._when.has_come(operation):
            try:
                self._act()
            except Exception as error:
                self.failure = error


def _refuse_removal(operation: Any) -> None:
    folder, _, name = operation.path.rpartition("/")
    if operation.kind in ("unlink", "delete") and folder.endswith(("packs", "parts")) and not name.startswith("."):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


class Killed(BaseException):
    """Nothing catches it."""


class Killer:
    """Kills a process for good before the commit of the snapshot whose part it has written."""

    def __init__(self) -> None:
        self._part = False
        self._dead = False

    def __call__(self, _: int, operation: Any) -> None:
        path = operation.path + getattr(operation, "target", "")
        if operation.kind in ("link", "put"):
            self._dead |= self._part and "commits/" in path
            self._part |= "parts/" in path
        if self._dead:
            raise Killed


@contextmanager
def dying() -> Iterator[None]:
    """Let a process be killed in here. Its threads die of that as it does itself, without a word."""
    before = threading.excepthook

    def buried(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_type is not Killed:
            before(arguments)

    threading.excepthook = buried
    try:
        yield
    except Killed:
        return
    finally:
        threading.excepthook = before
