"""A thread that talks to the store for its host: a link that is cut blocks it and nobody else."""

import threading
import time
from collections.abc import Callable

_RETRY = 0.02


class Pulse:
    """Calls `exchange` again and again; says for how long that has not come to an end.

    Args:
        exchange: Tells this host's word and hears the others'. A RuntimeError means that the store is gone.
        every: Seconds between two exchanges.
    """

    def __init__(self, exchange: Callable[[], None], every: float) -> None:
        self._exchange, self._every = exchange, every
        self._heard = time.monotonic()
        self._rounds = 0
        self._gone = False
        self._over = threading.Event()
        self._now = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradwire-pulse", daemon=True)
        self._thread.start()

    @property
    def silence(self) -> float:
        """Seconds since the last exchange; infinite once the store is gone."""
        return float("inf") if self._gone else time.monotonic() - self._heard

    def flush(self, patience: float) -> bool:
        """Exchange now, at least once from the beginning to the end; whether that was done in `patience` seconds."""
        wanted, deadline = self._rounds + 2, time.monotonic() + patience  # one may be under way
        while self._rounds < wanted and not self._gone and time.monotonic() < deadline:
            self._now.set()
            time.sleep(_RETRY)
        return self._rounds >= wanted

    def hurry(self) -> None:
        """Exchange now; do not wait for it."""
        self._now.set()

    def stop(self) -> None:
        """Exchange no more; a thread that is blocked is left behind."""
        self._over.set()
        self._now.set()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._exchange()
            except RuntimeError:
                self._gone = True
                return
            self._heard = time.monotonic()
            self._rounds += 1
            self._now.wait(self._every)
            self._now.clear()
