"""Where Optuna keeps a sweep's results: a journal in the sweep's folder, or a database."""

import fcntl
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.trainer.errors import MissingPackageError
from gradwire.trainer.sweep.errors import StorageError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

JOURNAL = "study.journal"


def open_storage(directory: Path, url: str | None) -> "BaseStorage":
    """Open the storage, and make it where there is none yet.

    Args:
        directory: The sweep's folder, for its own journal.
        url: A database's, or None for the journal.

    Raises:
        MissingPackageError: Optuna is not installed.
        StorageError: it cannot be opened.
    """
    _require()
    import optuna

    optuna.logging.set_verbosity(logging.ERROR)
    with reachable(shown(directory, url)):
        return _journal(directory / JOURNAL) if url is None else optuna.storages.get_storage(url)


def shown(directory: Path, url: str | None) -> str:
    """How messages name a storage: without the password in its URL."""
    return str(directory / JOURNAL) if url is None else re.sub(r"(://[^/:@]*):[^/@]*@", r"\1:…@", url)


def settled(url: str | None) -> str | None:
    """A storage's URL that means the same wherever it is used: SQLite's file by its whole path."""
    found = re.fullmatch(r"(sqlite(?:\+\w+)?):///(?!/)(?!:memory:)(.+)", url or "")
    return url if found is None else f"{found[1]}:///{Path(found[2]).absolute()}"


def check(url: str | None) -> None:
    """Refuse a storage that cannot be used, before anything is made.

    Raises:
        MissingPackageError: Optuna is not installed.
        StorageError: the database cannot be reached.
    """
    _require()
    if url is not None:
        open_storage(Path(), url)


def _require() -> None:
    missing = [name for name in ("optuna", "cmaes", "scipy") if find_spec(name) is None]
    if missing:
        raise MissingPackageError(f"sweeps need {' and '.join(missing)}: pip install 'gradwire[sweep]'")


@contextmanager
def reachable(place: str) -> Iterator[None]:
    """Turn what storages raise into one error that names the place."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    try:
        yield
    except (ArgumentError, NoSuchModuleError) as error:
        message = f"sweep.storage={place} is no database's URL ({_first(error)}): write sqlite:///FILE or null"
        raise StorageError(message) from error
    except (StorageInternalError, SQLAlchemyError, OSError, ImportError) as error:
        cause = error.__cause__ or error
        raise StorageError(f"the sweep's storage {place} cannot be used: {_first(cause)}") from error


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _journal(path: Path) -> "BaseStorage":
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    class Lock(JournalFileSymlinkLock):
        """The kernel's lock, which goes with its process: Optuna's own makes others wait half a minute after a kill."""

        def __init__(self) -> None:
            super().__init__(str(path))
            self._descriptor = -1

        def acquire(self) -> bool:
            self._descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            return True

        def release(self) -> None:
            os.close(self._descriptor)

    lock = Lock()
    lock.acquire()
    try:
        _mend(path)
    finally:
        lock.release()
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


def _mend(path: Path) -> None:
    """Take a torn last line away, which a machine that lost power may leave: Optuna could not read on behind it."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
