"""The memory of this host, where asking for too much ends processes instead of raising an error."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
import torch

_STATUS: Final = Path("/proc/self/status")
_RESET: Final = Path("/proc/self/clear_refs")
_CGROUPS: Final = (  # limit and use of a container
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


class MemoryGuard:
    """Refuses a pass that would take this process beyond its budget, judging by the smaller passes before it.

    Args:
        budget: Bytes that passes may take beyond what the process holds now.
        peak: Gives the largest memory that the process held since it was last called, in bytes.
    """

    def __init__(self, budget: float, peak: Callable[[], int] | None = None) -> None:
        self._peak = peak or resident_peak
        self._budget = budget
        self._base = self._peak()
        self._seen = [(0, self._base)]

    def guarded(self, attempt: Callable[[int], None]) -> Callable[[int], None]:
        """`attempt`, which raises torch.OutOfMemoryError beforehand where it would need too much."""

        def careful(size: int) -> None:
            needed = self.predicted(size)
            if needed > self._budget:
                raise torch.OutOfMemoryError(f"{size} samples need about {needed / 2**20:,.0f} MiB")
            self._peak()
            attempt(size)
            self._seen = sorted({*self._seen, (size, self._peak())})

        return careful

    def predicted(self, size: int) -> float:
        """Bytes beyond the base that a pass of so many samples needs: on the line through the two largest seen."""
        if len(self._seen) < 2:
            return 0.0
        (smaller, low), (larger, high) = self._seen[-2:]
        each = max(high - low, 0) / max(larger - smaller, 1)
        return high - self._base + each * (size - larger)


def available() -> int:
    """Bytes that new memory may take on this host, or in this container where that is less."""
    free = int(psutil.virtual_memory().available)
    for limit, used in _CGROUPS:
        try:
            free = min(free, int(limit.read_text()) - int(used.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return max(free, 0)


def resident_peak() -> int:
    """The most bytes that this process had in memory since the last call; where that is not told, since it began."""
    try:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        _RESET.write_text("5")
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
