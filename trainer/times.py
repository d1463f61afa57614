"""Where the wall-clock time of training goes, on this rank."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

Kind = Literal["data", "update", "journal", "checkpoint"]
_Item = TypeVar("_Item")


class Times:
    """Stopwatches that are read with each line of metrics.

    `data` is waiting for samples, `update` what computes and reduces, `journal` the part of it that waits until the
    update before is durable, `checkpoint` everything about the journal and snapshots afterwards.

    Args:
        now: A clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._spent: dict[Kind, float] = {}
        self._updates = self._tokens = 0

    @contextmanager
    def on(self, kind: Kind) -> Iterator[None]:
        """Count the time within the block."""
        began = self._now()
        try:
            yield
        finally:
            self._spent[kind] = self._spent.get(kind, 0.0) + self._now() - began

    def waited(self, source: Iterable[_Item]) -> Iterator[_Item]:
        """What a source gives; the time until it gives it counts as `data`."""
        items = iter(source)
        while True:
            with self.on("data"):
                found = next(items, None)
            if found is None:
                return
            yield found

    def updated(self, tokens: int) -> None:
        """An update of so many tokens was done."""
        self._updates += 1
        self._tokens += tokens

    def take(self) -> dict[str, float]:
        """Of the updates since the last call: tokens a second, and mean milliseconds.

        `time/update_ms` is all that an update took beside evaluation; `time/data_ms` and `time/checkpoint_ms` are
        parts of it.
        """
        spent, updates, tokens = self._spent, max(self._updates, 1), self._tokens
        self._spent, self._updates, self._tokens = {}, 0, 0
        data, update = spent.get("data", 0.0), spent.get("update", 0.0)
        after, waited = spent.get("checkpoint", 0.0), spent.get("journal", 0.0)
        found = {
            "tokens_per_second": tokens / (data + update) if data + update > 0 else 0.0,
            "time/update_ms": 1000 * (data + update + after) / updates,
            "time/data_ms": 1000 * data / updates,
        }
        return found | ({"time/checkpoint_ms": 1000 * (after + waited) / updates} if after + waited else {})
