"""One process at a time trains in a run directory: it holds a lock there, which the kernel frees when it ends."""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from gradwire.trainer.launch.errors import RunInUseError

LOCK = ".lock"


def hold(directory: Path, patience: float = 0.0) -> Callable[[], None]:
    """Claim the run for this process until it ends or calls what is returned; the kernel frees it after a kill.

    Args:
        directory: The run directory.
        patience: Seconds to wait for another process that holds it.

    Raises:
        RunInUseError: another process holds it.
    """
    descriptor, deadline = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644), time.monotonic() + patience
    while not _locked(descriptor):
        if time.monotonic() >= deadline:
            os.close(descriptor)
            raise RunInUseError(f"{directory} is being trained by another process at this moment: stop that one first.")
        time.sleep(0.1)
    return lambda: os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Lock a file; a file system without locks counts: the checkpoint store still refuses a second writer."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def in_use(directory: Path) -> bool:
    """Whether a process holds the run at this moment."""
    try:
        hold(directory, patience=0.5)()  # another host's controller may ask the same at this moment
    except RunInUseError:
        return True
    except OSError:  # a full disk: nobody can say
        return False
    return False
