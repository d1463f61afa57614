"""How long the end of a backward pass waits for communication that was not hidden behind it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Exposure:
    """A stopwatch around the waits for a device's collectives.

    On CUDA it is the stream that waits, so events are recorded in it and read later.

    Args:
        device: Of what is reduced.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time within the block."""
        if self._device.type == "cuda":
            with self._on_stream():
                yield
            return
        begun = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - begun

    def take(self) -> float:
        """Seconds since the last call."""
        for begun, over in self._pairs:
            over.synchronize()
            self._seconds += begun.elapsed_time(over) / 1000
        self._pairs.clear()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        begun, over = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        stream = torch.cuda.current_stream(self._device)
        begun.record(stream)
        yield
        over.record(stream)
        self._pairs.append((begun, over))
        if len(self._pairs) > _MOST:
            self._add_first()

    def _add_first(self) -> None:
        begun, over = self._pairs.pop(0)
        over.synchronize()  # long since happened
        self._seconds += begun.elapsed_time(over) / 1000


_MOST = 64  # pairs of events that are kept
