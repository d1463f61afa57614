"""Writing the journal beside training: a thread encodes and stores what the optimizer consumed, update by update."""

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, get_args

from gradwire.checkpoint.blobs import Blob
from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.errors import CheckpointError, CheckpointWriteError, WriterFenced
from gradwire.checkpoint.journal import Entry, Place, Scalar, check_entry, entry_bytes
from gradwire.checkpoint.journal_buffers import Buffers, Copied
from gradwire.checkpoint.store import Store

Durability = Literal["update", "interval"]
MOST_BYTES = 512 * 2**20


@dataclass(frozen=True)
class _Waiting:
    """An entry that was copied and is not encoded yet."""

    entry: Entry
    copied: Copied


@dataclass(frozen=True)
class _Ready:
    """An entry that is encoded and not written yet; `held` is its share of the bytes that wait."""

    update: int
    name: str
    data: bytes
    held: int


class JournalWriter:
    """Journals what one rank's optimizer consumes at each update since a commit.

    Entries are copied at once and written by a thread, in order; all that are ready become durable together. A failure
    ends the journal: it is raised by the next `append` or `wait`, and what is durable by then stays and counts.

    Args:
        store: Where the entries go.
        base: The commit that the run restored or saved last.
        epoch: The epoch that this run's CommitWriter has claimed since it went on from there.
        rank: Whose entries these are.
        world_size: Number of ranks that journal.
        durability: `update`: entries are written at once, and the caller waits for update t before the optimizer takes
            step t + 1 (a kill then costs the update that is under way); `interval`: they are written every `interval`.
        interval: Seconds between two writes with `interval`.
        after: The update that the next one follows; that of the base where None. Another one where updates were
            replayed on the base.
        most_bytes: Bytes that may wait for being written; `append` waits while there are more.

    Raises:
        ValueError: an argument makes no sense.
    """

    def __init__(
        self,
        store: Store,
        base: Commit,
        epoch: int,
        rank: int,
        world_size: int,
        durability: Durability = "interval",
        interval: float = 5.0,
        *,
        after: int | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        if durability not in get_args(Durability):
            raise ValueError(f"durability must be one of {', '.join(get_args(Durability))}, found {durability!r}")
        if not 0 <= rank < world_size or interval <= 0 or most_bytes < 1:
            raise ValueError(f"no journal of rank {rank} of {world_size}, every {interval} s, of {most_bytes} bytes")
        self._store = store
        self._base = base.sequence
        self._epoch = epoch
        self._rank = rank
        self._world_size = world_size
        self._interval = interval if durability == "interval" else 0.0
        self._most_bytes = most_bytes
        self._last = self._durable = base.update if after is None else after
        self._buffers = Buffers(most_bytes)
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._ready: list[_Ready] = []
        self._held = 0
        self._blocked = False
        self._wanted = 0
        self._written_at = time.monotonic()
        self._closing = self._abandoned = False
        self._error: CheckpointError | None = None
        self._thread = threading.Thread(target=self._run, name="gradwire-journal", daemon=True)
        self._thread.start()

    @property
    def last(self) -> int:
        """The update that was appended last."""
        return self._last

    @property
    def durable(self) -> int:
        """The last update of which this rank's entry survives whatever happens to the process."""
        return self._durable

    def rebase(self, base: Commit) -> None:
        """Put the entries that follow into the folder of a newer commit of this run."""
        self._base = base.sequence

    def append(
        self, update: int, scalars: Mapping[str, Scalar], tensors: Mapping[str, Blob], digest: str | None = None
    ) -> None:
        """Journal one update; returns when its tensors are copied.

        Args:
            update: Its number, one more than the last.
            scalars: What the optimizer used: clip coefficient, lr, betas, ….
            tensors: This rank's share of the gradients, and whatever else cannot be recomputed.
            digest: xxh3-128 of the state after the update, if it was taken.

        Raises:
            ValueError: it is not the next update.
            UnsupportedState: an entry cannot hold this.
            WriterFenced: another writer journals under this epoch.
            StoreError: an earlier entry was not written.
        """
        if update != self._last + 1:
            raise ValueError(f"update {update} cannot follow update {self._last} in the journal")
        check_entry(scalars, tensors, digest)
        size = sum(blob.data.nbytes for blob in tensors.values())
        self._reserve(size)
        copied = self._buffers.copy(tensors)
        place = Place(self._base, self._epoch, update, self._rank, self._world_size)
        with self._changed:
            self._waiting.append(_Waiting(Entry(place, dict(scalars), copied.blobs, digest), copied))
            self._last = update
            self._changed.notify_all()

    def wait(self, update: int) -> None:
        """Return once this rank's entry of an update is durable. Raises as `append` does."""
        if update > self._last:
            raise ValueError(f"update {update} is not in the journal yet; the last is {self._last}")
        with self._changed:
            self._wanted = max(self._wanted, update)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._durable >= update or self._error is not None)
            if self._durable < update:
                self._raise()

    def close(self) -> None:
        """Write what waits and end the thread. Raises as `append` does."""
        self._end()
        self._raise()

    def abandon(self) -> None:
        """End the thread without writing what waits."""
        self._abandoned = True
        self._end()

    def __enter__(self) -> "JournalWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close() if kind is None else self._end()

    def _end(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _reserve(self, size: int) -> None:
        """Take a share of the bytes that may wait; what is larger than all of them goes alone."""
        with self._changed:
            self._blocked = not self._has_room(size)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_room(size) or self._error or self._closing)
            self._blocked = False
            self._raise()
            if self._closing:
                raise ValueError("the journal was closed")
            self._held += size

    def _has_room(self, size: int) -> bool:
        return self._held == 0 or self._held + size <= self._most_bytes

    def _run(self) -> None:
        try:
            while (waiting := self._next()) is not None or self._ready:
                if waiting is not None:
                    self._encode(waiting)
                if self._is_due():
                    self._write()
        except CheckpointError as error:
            self._fail(error)
        except Exception as error:
            self._fail(CheckpointWriteError(f"{self._store.url}: the journal ended: {error!r}"), error)

    def _next(self) -> _Waiting | None:
        """The next entry to encode, as soon as there is one; None when it is time to write, or to end."""
        with self._changed:
            while not self._waiting and not self._closing and not self._due_now():
                self._changed.wait(self._pause())
            if self._abandoned:
                self._waiting.clear()
                self._ready.clear()
            return self._waiting.popleft() if self._waiting else None

    def _pause(self) -> float | None:
        return max(0.0, self._written_at + self._interval - time.monotonic()) if self._ready else None

    def _is_due(self) -> bool:
        with self._changed:
            return self._due_now()

    def _due_now(self) -> bool:
        if not self._ready or self._abandoned:
            return False
        if self._blocked or self._held * 2 > self._most_bytes:
            return True
        if self._waiting:
            return False
        return self._closing or self._wanted > self._durable or time.monotonic() >= self._written_at + self._interval

    def _encode(self, waiting: _Waiting) -> None:
        entry = waiting.entry
        data = entry_bytes(entry)
        size = sum(blob.data.nbytes for blob in entry.tensors.values())
        self._buffers.give_back(waiting.copied)
        with self._changed:
            self._ready.append(_Ready(entry.place.update, entry.place.name, data, len(data)))
            self._held += len(data) - size
            self._changed.notify_all()

    def _write(self) -> None:
        taken = self._store.put_all([(ready.name, ready.data) for ready in self._ready])
        if taken:
            raise WriterFenced(
                f"{self._store.url}: {taken[0]} was written by another process: two runs journal under epoch "
                f"{self._epoch}; this one must stop"
            )
        with self._changed:
            self._durable = self._ready[-1].update
            self._held -= sum(ready.held for ready in self._ready)
            self._ready.clear()
            self._written_at = time.monotonic()
            self._changed.notify_all()

    def _fail(self, error: CheckpointError, cause: Exception | None = None) -> None:
        error.__cause__ = cause or error.__cause__
        with self._changed:
            self._error = error
            self._waiting.clear()
            self._ready.clear()
            self._changed.notify_all()
