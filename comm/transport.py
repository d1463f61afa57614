"""Messages along one axis: posted without waiting, waited for by name."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from gradwire.comm.errors import CollectiveError
from gradwire.comm.farewell import Farewell
from gradwire.comm.neighbors import Neighbors

_TAGS = 1 << 20  # numbers of messages; they come round only after everything older has arrived
_LENGTHS = 1021  # lengths told apart by their tags: gloo ends the process where a message does not fit its room

Message = tuple[int, Tensor]  # position of the peer on the line, and what is sent to or received from it


@dataclass(frozen=True, eq=False)
class Line:
    """The ranks that one axis joins to this one, in the order of their positions.

    Args:
        axis: Its name.
        ranks: Ranks by position, as errors shall name them.
        position: This rank's.
        group: Exactly these ranks, in this order, unless `addresses` says where in the group they are.
        timeout: How long a peer may keep this rank waiting.
        on_streams: Whether it is the current CUDA stream that waits, and not the host.
        farewell: How a rank that gives up says why; None on NCCL.
        addresses: See `group`.
        neighbors: For reading messages from the sender's memory, where all ranks are on one host.
    """

    axis: str
    ranks: tuple[int, ...]
    position: int
    group: dist.ProcessGroup
    timeout: timedelta
    on_streams: bool = False
    farewell: Farewell | None = None
    addresses: tuple[int, ...] | None = None
    neighbors: Neighbors | None = None

    @property
    def size(self) -> int:
        return len(self.ranks)

    def withdraw(self) -> None:
        """Let nobody take for a message what is in this rank's memory from now on."""
        if self.neighbors is not None:
            self.neighbors.withdraw()

    def hang_up(self, error: BaseException) -> None:
        """Tell the peers what went wrong and close the connections: whatever waits along the axis fails at once."""
        self.withdraw()
        if self.farewell is not None:
            rank = self.ranks[self.position]
            origin = error.origin if isinstance(error, CollectiveError) else ""
            self.farewell.say(origin or f"{type(error).__name__} on rank {rank}: {error}")
        if self.neighbors is not None:
            self.neighbors.hang_up()

    def close(self) -> None:
        """Let go of what is kept beside the group. Nothing is under way."""
        if self.neighbors is not None:
            self.neighbors.close()

    def post(self, sends: Sequence[Message], receives: Sequence[Message], tag: int, what: str) -> "Exchange":
        """Begin an exchange: receives first, so that peers find room for what they send.

        Args:
            sends: Contiguous tensors that stay untouched until `Exchange.sent` returns.
            receives: Contiguous tensors of the sizes that the peers send, in the peers' order.
            tag: The same on both sides of a message; tells it from others between the two ranks.
            what: For errors: the phase and the round.

        Raises:
            CollectiveError: A connection is gone.
        """
        exchange = self.expect(receives, tag, what)
        self.send(exchange, sends, tag)
        return exchange

    def expect(self, receives: Sequence[Message], tag: int, what: str) -> "Exchange":
        """Begin an exchange with its receives alone; see `post`.

        gloo sends no message before it knows of room for it, and says so behind everything that goes the same way: room
        that is made early keeps links busy. On streams nothing begins before `send`.

        Raises:
            CollectiveError: A connection is gone.
        """
        exchange = Exchange(self, what, receives)
        if not self.on_streams:
            for peer, buffer in receives:
                with exchange.named(peer):
                    self._receive(exchange, peer, buffer, tag)
        return exchange

    def send(self, exchange: "Exchange", sends: Sequence[Message], tag: int) -> None:
        """Send what belongs to an exchange; see `post`.

        Raises:
            CollectiveError: A connection is gone.
        """
        if self.on_streams and (sends or exchange.rooms):
            self._send_coalesced(exchange, sends)
            return
        for peer, message in sends:
            with exchange.named(peer):
                self._send(exchange, peer, message, tag)

    def _receive(self, exchange: "Exchange", peer: int, buffer: Tensor, tag: int) -> None:
        work: Awaited
        if self.neighbors is not None:
            work = _Reading(self.neighbors, peer, _tag(tag, buffer), buffer)
        else:
            work = self.group.recv([buffer], self._address(peer), _tag(tag, buffer))
        exchange.receives.append((peer, work))

    def _send(self, exchange: "Exchange", peer: int, message: Tensor, tag: int) -> None:
        work: Awaited
        if self.neighbors is not None:
            self.neighbors.offer(peer, _tag(tag, message), message)
            work = _Receipt(self.neighbors, peer, _tag(tag, message))
        else:
            work = self.group.send([message], self._address(peer), _tag(tag, message))
        exchange.sends.append((peer, work))

    def _address(self, position: int) -> int:
        return position if self.addresses is None else self.addresses[position]

    def _send_coalesced(self, exchange: "Exchange", sends: Sequence[Message]) -> None:
        """As one group of NCCL operations, which finish together; NCCL knows no tags but keeps the order."""
        operations = [
            dist.P2POp(kind, tensor, group=self.group, group_peer=self._address(peer))
            for kind, messages in ((dist.irecv, exchange.rooms), (dist.isend, sends))
            for peer, tensor in messages
        ]
        with exchange.named((*exchange.rooms, *sends)[0][0]):
            works = dist.batch_isend_irecv(operations)
        exchange.receives.extend((peer, works[-1]) for peer, _ in exchange.rooms)


class Awaited(Protocol):
    """What becomes of one message."""

    def wait(self, timeout: timedelta = ...) -> object: ...


@dataclass(frozen=True, eq=False)
class _Reading:
    """A message that comes from the peer's memory."""

    neighbors: Neighbors
    peer: int
    tag: int
    room: Tensor

    def wait(self, timeout: timedelta = timedelta.max) -> None:
        self.neighbors.receive(self.peer, self.tag, self.room, timeout.total_seconds())


@dataclass(frozen=True, eq=False)
class _Receipt:
    """For a message that the peer takes from this rank's memory."""

    neighbors: Neighbors
    peer: int
    tag: int

    def wait(self, timeout: timedelta = timedelta.max) -> None:
        self.neighbors.receipt(self.peer, self.tag, timeout.total_seconds())


@dataclass(frozen=True, eq=False)
class Exchange:
    """Messages under way."""

    line: Line
    what: str
    rooms: Sequence[Message] = ()
    receives: list[tuple[int, Awaited]] = field(default_factory=list)
    sends: list[tuple[int, Awaited]] = field(default_factory=list)

    def arrivals(self) -> Iterator[int]:
        """Wait for the receives one after the other; gives the place of each in the list as it is there.

        Raises:
            CollectiveError: Names axis, rank and round: the peer died, or kept this rank waiting too long.
        """
        for place, (peer, work) in enumerate(self.receives):
            self._wait(peer, work)
            yield place

    def sent(self) -> None:
        """Wait until what was sent may be touched.

        Raises:
            CollectiveError: As `arrivals`.
        """
        for peer, work in self.sends:
            self._wait(peer, work)

    def _wait(self, peer: int, work: Awaited) -> None:
        with self.named(peer):
            if self.line.on_streams:
                work.wait()  # with a time-out the host would wait; NCCL's watchdog keeps the time
            else:
                work.wait(self.line.timeout)

    @contextmanager
    def named(self, peer: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._error(peer, error) from error

    def _error(self, peer: int, error: RuntimeError) -> CollectiveError:
        line = self.line
        place = (
            f"{self.what} along {line.axis} failed on rank {line.ranks[line.position]} while waiting for rank "
            f"{line.ranks[peer]}"
        )
        words = line.farewell.heard(peer) if line.farewell is not None else ""
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        explanation = (
            f"it gave up because {words}"
            if words
            else f"{reason}. That rank has died, hangs, waits for another or made another call (the time-out is "
            f"{line.timeout.total_seconds():g} s)"
        )
        made = CollectiveError(f"{place}: {explanation}; look at the logs, then start all ranks again")
        made.origin = words or place
        return made


def _tag(number: int, message: Tensor) -> int:
    return number % _TAGS + _TAGS * (message.nbytes % _LENGTHS)
