"""The two shots of an all-reduce along an axis with a codec, after which every rank has decoded the same bytes."""

import time

import torch
from torch import Tensor

from gradwire.comm.codecs.codec import Codec
from gradwire.comm.layout import Portion, Range
from gradwire.comm.momentum import DeepGradientCompression
from gradwire.comm.program import encode_seed
from gradwire.comm.segment import Segment
from gradwire.comm.telemetry import Meter, energy
from gradwire.comm.transport import Line, Message


class _CodedStage:
    rounds = 1
    kind: str

    def __init__(self, line: Line, depth: int, codec: Codec) -> None:
        self.name = f"{self.kind} {line.axis}"
        self.line = line
        self.codec = codec
        self.meter = Meter(line.axis)
        self._depth = depth
        self._peers = [position for position in range(line.size) if position != line.position]

    @property
    def _correction(self) -> DeepGradientCompression | None:
        return self.codec if isinstance(self.codec, DeepGradientCompression) else None

    def _portion(self, segment: Segment) -> Portion:
        return segment.portions[self._depth]

    def _values(self, segment: Segment, span: Range) -> Tensor:
        """The elements of `span` as float32: the tensor's own memory where that is float32, else a copy."""
        elements = segment.elements(*span)
        if elements.dtype == torch.float32:
            return elements
        return segment.take(f"{self.name} values", elements.numel(), torch.float32).copy_(elements)

    def _store(self, segment: Segment, span: Range, values: Tensor) -> None:
        if segment.flat.dtype != torch.float32:
            segment.elements(*span).copy_(values)

    def _encode(self, segment: Segment, values: Tensor, start: int, payload: Tensor) -> None:
        """Encode float32 `values`, whose first is element `start` of the tensor."""
        error = self._error(segment, start, values.numel())
        adds = self.kind == "reduce-scatter"
        seed = encode_seed(self.codec, segment.seed, start, self.line.position, adds)
        self._codec(segment).encode(values, payload, seed=seed, error=error)
        if segment.measured and error is not None:
            self.meter.errors.append((energy(error), energy(values)))

    def _codec(self, segment: Segment) -> Codec:
        return self.codec.at(segment.update)

    def _error(self, segment: Segment, start: int, count: int) -> Tensor | None:
        """Where what is lost of the elements from `start` on shall be written."""
        residual = segment.residuals.get(self.line.axis)
        if residual is not None:
            first = start - self._portion(segment).start
            return residual.pending[first : first + count]
        return segment.take(f"{self.name} error", count, torch.float32) if segment.measured else None

    def _payloads(self, segment: Segment, name: str, counts: list[int]) -> list[Tensor]:
        """Room for the payloads of chunks of so many elements, each beginning at a multiple of 64 bytes."""
        codec = self._codec(segment)
        sizes = [codec.nbytes(count) for count in counts]
        padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        room = segment.take(f"{self.name} {name}", sum(padded), torch.uint8)
        return [part[:size] for part, size in zip(torch.split(room, padded), sizes, strict=True)]

    def _expect(self, segment: Segment, rooms: list[Message], tag: int) -> None:
        what = f"round 1 of 1 of the {self.kind} ({self.codec.name})"
        segment.exchanges[self.name] = self.line.expect(_filled(rooms), tag, what)

    def _send(self, segment: Segment, messages: list[Message], tag: int) -> None:
        sends = _filled(messages)
        self.meter.sent += sum(message.nbytes for _, message in sends)
        self.line.send(segment.exchanges[self.name], sends, tag)


class CodedReduceScatter(_CodedStage):
    """Every rank encodes what each other rank will own; the owner adds what it decodes to its own exact part.

    With momentum correction the owner chooses from its own part as well, or that would count for more than the others.

    Args:
        line: The ranks along the axis.
        depth: Which of the segment's portions the axis cuts.
        codec: Encodes.
    """

    kind = "reduce-scatter"

    def expect(self, segment: Segment, tag: int) -> None:
        start, stop = self._portion(segment).own
        self._expect(segment, self._rooms(segment, stop - start), tag)

    def start(self, segment: Segment, tag: int) -> None:
        begun = time.perf_counter()
        portion = self._portion(segment)
        values = self._values(segment, (portion.start, portion.stop))
        residual = segment.residuals.get(self.line.axis)
        if residual is not None and self._correction is not None:
            assert residual.velocity is not None
            self._correction.accumulate(values, residual.kept, residual.velocity.kept, residual.velocity.pending)
        elif residual is not None:
            values.add_(residual.kept)
        counts = [stop - start for start, stop in portion.chunks]
        payloads = self._payloads(segment, "sent", [counts[peer] for peer in self._peers])
        for peer, payload in zip(self._peers, payloads, strict=True):
            start, stop = portion.chunks[peer]
            if stop > start:
                self._encode(segment, values[start - portion.start : stop - portion.start], start, payload)
        own = values[portion.own[0] - portion.start : portion.own[1] - portion.start]
        if self._correction is not None and own.numel():
            (payload,) = self._payloads(segment, "own", [own.numel()])
            self._encode(segment, own, portion.own[0], payload)
            self._codec(segment).decode(payload, own)
        self._store(segment, portion.own, own)
        self.meter.encoding += time.perf_counter() - begun
        self.meter.uncompressed += (portion.stop - portion.start - own.numel()) * segment.flat.itemsize
        self._send(segment, list(zip(self._peers, payloads, strict=True)), tag)

    def _encode(self, segment: Segment, values: Tensor, start: int, payload: Tensor) -> None:
        super()._encode(segment, values, start, payload)
        residual = segment.residuals.get(self.line.axis)
        if self._correction is not None and residual is not None and residual.velocity is not None:
            first = start - self._portion(segment).start
            velocity = residual.velocity.pending[first : first + values.numel()]
            self._correction.clear_sent(self._correction.at(segment.update), payload, velocity)

    def _rooms(self, segment: Segment, count: int) -> list[Message]:
        rooms = self._payloads(segment, "received", [count] * len(self._peers))
        return list(zip(self._peers, rooms, strict=True))

    def finish(self, segment: Segment, tag: int) -> None:
        own = self._portion(segment).own
        values = self._values(segment, own)
        codec, rooms = self._codec(segment), self._rooms(segment, values.numel())
        for place in self.meter.timed_arrivals(segment.exchanges[self.name]):
            begun = time.perf_counter()
            codec.decode_add(rooms[place][1], values)
            self.meter.decoding += time.perf_counter() - begun
        self._store(segment, own, values)


class CodedAllGather(_CodedStage):
    """Every owner encodes its part once, and everybody, the owner too, decodes these bytes.

    Args:
        line: The ranks along the axis.
        depth: Which of the segment's portions the axis cuts.
        codec: Encodes.
        keeps_error: Whether this rank keeps what is lost, among those along later axes that lose the same.
    """

    kind = "all-gather"

    def __init__(self, line: Line, depth: int, codec: Codec, keeps_error: bool = True) -> None:
        super().__init__(line, depth, codec)
        self._keeps_error = keeps_error

    def expect(self, segment: Segment, tag: int) -> None:
        self._expect(segment, self._rooms(segment), tag)

    def start(self, segment: Segment, tag: int) -> None:
        begun = time.perf_counter()
        portion = self._portion(segment)
        values = self._values(segment, portion.own)
        (payload,) = self._payloads(segment, "sent", [values.numel()])
        if values.numel():
            self._encode(segment, values, portion.own[0], payload)
        self.meter.encoding += time.perf_counter() - begun
        self.meter.uncompressed += values.numel() * segment.flat.itemsize * len(self._peers)
        self._send(segment, [(peer, payload) for peer in self._peers], tag)
        if values.numel():
            self._decode(segment, payload, portion.own)
            segment.keep_payload(self._depth, payload)

    def _encode(self, segment: Segment, values: Tensor, start: int, payload: Tensor) -> None:
        super()._encode(segment, values, start, payload)
        residual = segment.residuals.get(self.line.axis)
        if residual is None:
            return
        first = start - self._portion(segment).start
        pending = residual.pending[first : first + values.numel()]
        if self._correction is None and not self._keeps_error:
            pending.zero_()
        elif self._correction is not None and self._keeps_error:  # beside what was not chosen of its own part
            pending.add_(segment.take(f"{self.name} error", values.numel(), torch.float32))

    def _error(self, segment: Segment, start: int, count: int) -> Tensor | None:
        if self._correction is not None:
            return segment.take(f"{self.name} error", count, torch.float32)
        return super()._error(segment, start, count)

    def _rooms(self, segment: Segment) -> list[Message]:
        chunks = [self._portion(segment).chunks[peer] for peer in self._peers]
        rooms = self._payloads(segment, "received", [stop - start for start, stop in chunks])
        return list(zip(self._peers, rooms, strict=True))

    def finish(self, segment: Segment, tag: int) -> None:
        portion = self._portion(segment)
        rooms = [(peer, room) for peer, room in self._rooms(segment) if room.numel()]
        for place in self.meter.timed_arrivals(segment.exchanges[self.name]):
            begun = time.perf_counter()
            peer, room = rooms[place]
            self._decode(segment, room, portion.chunks[peer])
            self.meter.decoding += time.perf_counter() - begun

    def _decode(self, segment: Segment, payload: Tensor, span: Range) -> None:
        elements = segment.elements(*span)
        if elements.dtype == torch.float32:
            self._codec(segment).decode(payload, elements)
            return
        room = segment.take(f"{self.name} decoded {span[0]}", elements.numel(), torch.float32)
        self._codec(segment).decode(payload, room)
        elements.copy_(room)


def _filled(messages: list[Message]) -> list[Message]:
    return [each for each in messages if each[1].numel()]


_ALIGNMENT = 64  # bytes
