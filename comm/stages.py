"""The stages of an all-reduce: a reduce-scatter or an all-gather along one axis, without a codec."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
import torch.distributed as dist

from gradwire.comm.layout import Portion
from gradwire.comm.rounds import Algorithm, Round
from gradwire.comm.segment import Segment
from gradwire.comm.telemetry import Meter
from gradwire.comm.transport import Exchange, Line, Message


class Stage(Protocol):
    """One phase along one axis. Segments come in the same order on every rank.

    `expect` and `start` never wait for a peer and may be called while an earlier segment is in `finish`.
    """

    name: str
    line: Line
    rounds: int
    meter: Meter

    def expect(self, segment: Segment, tag: int) -> None:
        """Make room for what this rank will receive first, as soon as the segment sets out.

        It may be in place of elements that are sent in an earlier stage: what arrives follows from them.
        """
        ...

    def start(self, segment: Segment, tag: int) -> None:
        """Send what this rank can send first."""
        ...

    def finish(self, segment: Segment, tag: int) -> None:
        """Wait for it and go through the remaining rounds."""
        ...


class RoundsStage:
    """A stage that follows some consecutive rounds of an algorithm.

    Args:
        line: The ranks along the axis.
        depth: Which of the segment's portions the axis cuts.
        algorithm: Gives the rounds.
        kind: "reduce-scatter" or "all-gather".
        rounds: Those that this stage goes through.
    """

    def __init__(self, line: Line, depth: int, algorithm: Algorithm, kind: str, rounds: range) -> None:
        self.name = f"{kind} {line.axis} {rounds.start}"
        self.line = line
        self.meter = Meter(line.axis)
        self.rounds = len(rounds)
        self._depth = depth
        self._adds = kind == "reduce-scatter"
        turn = algorithm.reduce_scatter if self._adds else algorithm.all_gather
        self._mine = [_Mine(turn(line.size, index), line.position) for index in rounds]
        self._rounds = [f"round {index + 1} of {algorithm.rounds(line.size)} of the {kind}" for index in rounds]

    def expect(self, segment: Segment, tag: int) -> None:
        self._expect(segment, 0, tag)

    def start(self, segment: Segment, tag: int) -> None:
        self._send(segment, 0, tag)

    def finish(self, segment: Segment, tag: int) -> None:
        for index in range(self.rounds):
            exchange = segment.exchanges[self.name]
            self._arrive(segment, index, exchange)
            if index + 1 < self.rounds:
                exchange.sent()
                self._expect(segment, index + 1, tag)
                self._send(segment, index + 1, tag)

    def _expect(self, segment: Segment, index: int, tag: int) -> None:
        receives = list(self._rooms(segment, self._mine[index], segment.portions[self._depth]))
        segment.exchanges[self.name] = self.line.expect(receives, tag + index, self._rounds[index])

    def _send(self, segment: Segment, index: int, tag: int) -> None:
        mine, portion = self._mine[index], segment.portions[self._depth]
        sends = [(peer, segment.elements(*span)) for peer, span in _spans(mine.sends, portion)]
        nbytes = sum(message.nbytes for _, message in sends)
        self.meter.sent += nbytes
        self.meter.uncompressed += nbytes
        self.line.send(segment.exchanges[self.name], sends, tag + index)

    def _rooms(self, segment: Segment, mine: "_Mine", portion: Portion) -> Iterator[Message]:
        """Where to receive: in place, or beside what the arriving parts are added to."""
        spans = list(_spans(mine.receives, portion))
        if not self._adds:
            yield from ((peer, segment.elements(*span)) for peer, span in spans)
            return
        room = segment.take(self.name, sum(stop - start for _, (start, stop) in spans))
        sizes = [stop - start for _, (start, stop) in spans]
        yield from ((peer, part) for (peer, _), part in zip(spans, torch.split(room, sizes), strict=True))

    def _arrive(self, segment: Segment, index: int, exchange: Exchange) -> None:
        if not self._adds:
            for _ in self.meter.timed_arrivals(exchange):
                pass
            return
        mine, portion = self._mine[index], segment.portions[self._depth]
        spans = [span for _, span in _spans(mine.receives, portion)]
        rooms = list(self._rooms(segment, mine, portion))
        for place in self.meter.timed_arrivals(exchange):
            segment.elements(*spans[place]).add_(rooms[place][1])


class NativeStage:
    """A stage that is the backend's own collective; its errors know no round.

    Args:
        line: The ranks along the axis.
        depth: Which of the segment's portions the axis cuts.
        kind: "reduce-scatter" or "all-gather".
    """

    rounds = 1

    def __init__(self, line: Line, depth: int, kind: str) -> None:
        self.name = f"{kind} {line.axis}"
        self.line = line
        self.meter = Meter(line.axis)
        self._depth = depth
        self._scatters = kind == "reduce-scatter"

    def expect(self, segment: Segment, tag: int) -> None:
        """The backend does."""

    def start(self, segment: Segment, tag: int) -> None:
        portion = segment.portions[self._depth]
        chunks = [segment.elements(*chunk) for chunk in portion.chunks]
        own = segment.elements(*portion.own)
        exchange = Exchange(self.line, f"the backend's {self.name.split()[0]}")
        with exchange.named((self.line.position + 1) % self.line.size):
            if self._scatters:
                room = segment.take(self.name, own.numel())
                work = dist.reduce_scatter(room, chunks, group=self.line.group, async_op=True)
            else:
                work = dist.all_gather(chunks, own, group=self.line.group, async_op=True)
        assert work is not None
        exchange.receives.append(((self.line.position + 1) % self.line.size, work))
        nbytes = (portion.stop - portion.start - own.numel()) * own.itemsize
        self.meter.sent += nbytes
        self.meter.uncompressed += nbytes
        segment.exchanges[self.name] = exchange

    def finish(self, segment: Segment, tag: int) -> None:
        for _ in self.meter.timed_arrivals(segment.exchanges[self.name]):
            own = segment.elements(*segment.portions[self._depth].own)
            if self._scatters:
                own.copy_(segment.take(self.name, own.numel()))


class _Mine:
    """This rank's part of a round: (peer, first chunk, number of chunks)."""

    def __init__(self, turn: Round, position: int) -> None:
        self.sends = list(turn.sends(position))
        self.receives = list(turn.receives(position))


def _spans(transfers: Iterable[tuple[int, int, int]], portion: Portion) -> Iterator[tuple[int, tuple[int, int]]]:
    for peer, start, count in transfers:
        for span in portion.spans(start, count):
            yield peer, span
