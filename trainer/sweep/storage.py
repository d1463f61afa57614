"""Where Optuna keeps a sweep's results: a journal in the sweep's folder, or a database."""

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.trainer.errors import MissingPackageError
from gradwire.trainer.sweep import files
from gradwire.trainer.sweep.errors import DamagedSweepError, StorageError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

JOURNAL = "study.journal"
_PATIENCE = 60.0  # seconds in which whoever writes the journal is through with a line
_FLEETING = r"sqlite(?:\+\w+)?://(?:/?|/:memory:.*)"


def open_storage(directory: Path, url: str | None) -> "BaseStorage":
    """Open the storage, and make it where there is none yet.

    Args:
        directory: The sweep's folder, for its own journal.
        url: A database's, or None for the journal.

    Raises:
        MissingPackageError: Optuna is not installed.
        StorageError: it cannot be opened.
        DamagedSweepError: the journal cannot be read.
    """
    _require()
    import optuna

    optuna.logging.set_verbosity(logging.ERROR)
    with reachable(shown(directory, url)):
        return _journal(directory / JOURNAL) if url is None else _database(url)


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
        StorageError: the database cannot be reached, or is none that stays.
    """
    _require()
    if url is not None and re.fullmatch(_FLEETING, url):
        raise StorageError(
            f"sweep.storage={url} is gone with its process: name a file, as in sqlite:///FILE, or leave it out"
        )
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
    except (JSONDecodeError, UnicodeDecodeError) as error:
        raise DamagedSweepError(f"the sweep's storage {place} is damaged: {_first(error)}") from error
    except (StorageInternalError, SQLAlchemyError, OSError, ImportError) as error:
        cause = error.__cause__ or error
        raise StorageError(f"the sweep's storage {place} cannot be used: {_first(cause)}") from error


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _database(url: str) -> "BaseStorage":
    import optuna

    try:
        return optuna.storages.get_storage(url)
    except (ValueError, RuntimeError) as error:  # no longer supported, or the tables of another version
        raise StorageError(f"sweep.storage={shown(Path(), url)} cannot be used: {_first(error)}") from error


def _journal(path: Path) -> "BaseStorage":
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    class Lock(JournalFileSymlinkLock):
        """The kernel's lock, which goes with its process: Optuna's own makes others wait half a minute after a kill."""

        def __init__(self) -> None:
            super().__init__(str(path))
            self._descriptor = -1

        def acquire(self) -> bool:
            deadline = time.monotonic() + _PATIENCE
            found = files.lock(path.with_name(f".{path.name}.lock"), lambda: time.monotonic() < deadline)
            if found is None:
                raise StorageError(
                    f"{path} has been locked by another process for {_PATIENCE:.0f} s: end the controller that hangs"
                )
            self._descriptor = found
            _mend(path)
            return True

        def release(self) -> None:
            os.close(self._descriptor)

    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=Lock()))
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise DamagedSweepError(
            f"{path} is damaged, or was written by a newer Optuna ({type(error).__name__}: {_first(error)}). Put a "
            "copy back, or take its lines away from the damaged one on: trials that are whole in their folders stay"
        ) from error


def _mend(path: Path) -> None:
    """Take a torn last line away, as a full disk or a loss of power may leave: Optuna could not read on behind it."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end == 0 or (file.seek(end - 1), file.read(1))[1] == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        os.fsync(file.fileno())
