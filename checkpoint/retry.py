"""Trying again when a remote store has a bad moment."""

import errno
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")

_LASTING = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_LASTING_NUMBERS = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.ENAMETOOLONG)
)
_CLIENT_LIBRARIES = frozenset(("aiohttp", "botocore", "aiobotocore", "urllib3", "requests", "google", "gcsfs", "azure"))


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed later: time-outs, lost connections and a server's 5xx, but no refusals."""
    if isinstance(error, _LASTING) or (isinstance(error, OSError) and error.errno in _LASTING_NUMBERS):
        return False
    if isinstance(error, OSError | TimeoutError):
        return True
    return type(error).__module__.partition(".")[0] in _CLIENT_LIBRARIES and "Credentials" not in type(error).__name__


@dataclass(frozen=True)
class Retry:
    """Repeats a request with growing, jittered pauses until a deadline; on top of what the file system itself repeats.

    Args:
        deadline: Seconds after which the last error is raised.
        first: Longest first pause in seconds; each further one may be twice as long (full jitter).
        longest: Longest pause in seconds.
        sleep: Pauses for so many seconds.
        clock: Seconds that only grow.
    """

    deadline: float = 60.0
    first: float = 0.2
    longest: float = 5.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def run(self, request: Callable[[], Result]) -> Result:
        """The request's result; its own error where that is lasting or the deadline has passed."""
        end, pause = self.clock() + self.deadline, self.first
        while True:
            try:
                return request()
            except Exception as error:
                wait = random.SystemRandom().uniform(0.0, pause)  # the global generator is the user's
                if not is_transient(error) or self.clock() + wait > end:
                    raise
            self.sleep(wait)
            pause = min(2 * pause, self.longest)
