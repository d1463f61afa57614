"""The two shots of an all-reduce along an axis with a codec, after which every rank has decoded the same bytes."""

import time

import torch
from torch import Tensor

from gradwire.comm.codecs.codec import Codec
from gradwire.comm.layout import Portion, Range
from gradwire.comm.program import encode_seed
from gradwire.comm.segment import Segment
from gradwire.comm.telemetry import Meter
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
        residual, error = segment.residuals.get(self.line.axis), None
        if residual is not None:
            first = start - self._portion(segment).start
            error = residual.pending[first : first + values.numel()]
        elif segment.measured:
            error = segment.take(f"{self.name} error", values.numel(), torch.float32)
        adds = self.kind == "reduce-scatter"
        seed = encode_seed(self.codec, segment.seed, start, self.line.position, adds)
        self.codec.encode(values, payload, seed=seed, error=error)
        if segment.measured and error is not None:
            self.meter.errors.append((_energy(error), _energy(values)))

    def _payloads(self, segment: Segment, name: str, counts: list[int]) -> list[Tensor]:
        """Room for the payloads of chunks of so many elements, each beginning at a multiple of 64 bytes."""
        sizes = [self.codec.nbytes(count) for count in counts]
        padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        room = segment.take(f"{self.name} {name}", sum(padded), torch.uint8)
        return [part[:size] for part, size in zip(torch.split(room, padded), sizes, strict=True)]

    def _post(self, segment: Segment, sends: list[Message], receives: list[Message], tag: int) -> None:
        sends, receives = ([each for each in side if each[1].numel()] for side in (sends, receives))
        self.meter.sent += sum(message.nbytes for _, message in sends)
        what = f"round 1 of 1 of the {self.kind} ({self.codec.name})"
        segment.exchanges[self.name] = self.line.post(sends, receives, tag, what)


class CodedReduceScatter(_CodedStage):
    """Every rank encodes what each other rank will own; the owner adds what it decodes to its own exact part.

    Args:
        line: The ranks along the axis.
        depth: Which of the segment's portions the axis cuts.
        codec: Encodes.
    """

    kind = "reduce-scatter"

    def start(self, segment: Segment, tag: int) -> None:
        begun = time.perf_counter()
        portion = self._portion(segment)
        values = self._values(segment, (portion.start, portion.stop))
        residual = segment.residuals.get(self.line.axis)
        if residual is not None:
            values.add_(residual.kept)
        counts = [stop - start for start, stop in portion.chunks]
        payloads = self._payloads(segment, "sent", [counts[peer] for peer in self._peers])
        for peer, payload in zip(self._peers, payloads, strict=True):
            start, stop = portion.chunks[peer]
            if stop > start:
                self._encode(segment, values[start - portion.start : stop - portion.start], start, payload)
        own = values[portion.own[0] - portion.start : portion.own[1] - portion.start]
        self._store(segment, portion.own, own)
        self.meter.encoding += time.perf_counter() - begun
        sends = list(zip(self._peers, payloads, strict=True))
        self._post(segment, sends, self._rooms(segment, own.numel()), tag)

    def _rooms(self, segment: Segment, count: int) -> list[Message]:
        rooms = self._payloads(segment, "received", [count] * len(self._peers))
        return list(zip(self._peers, rooms, strict=True))

    def finish(self, segment: Segment, tag: int) -> None:
        own = self._portion(segment).own
        values = self._values(segment, own)
        rooms = self._rooms(segment, values.numel())
        for place in self.meter.timed_arrivals(segment.exchanges[self.name]):
            begun = time.perf_counter()
            self.codec.decode_add(rooms[place][1], values)
            self.meter.decoding += time.perf_counter() - begun
        self._store(segment, own, values)


class CodedAllGather(_CodedStage):
    """Every owner encodes its part once, and everybody, the owner too, decodes these bytes.

    Args:
        line: The ranks along the axis.
        depth: Which of the segment's portions the axis cuts.
        codec: Encodes.
    """

    kind = "all-gather"

    def start(self, segment: Segment, tag: int) -> None:
        begun = time.perf_counter()
        portion = self._portion(segment)
        values = self._values(segment, portion.own)
        (payload,) = self._payloads(segment, "sent", [values.numel()])
        if values.numel():
            self._encode(segment, values, portion.own[0], payload)
        self.meter.encoding += time.perf_counter() - begun
        self._post(segment, [(peer, payload) for peer in self._peers], self._rooms(segment), tag)
        if values.numel():
            self._decode(segment, payload, portion.own)

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
            self.codec.decode(payload, elements)
            return
        room = segment.take(f"{self.name} decoded {span[0]}", elements.numel(), torch.float32)
        self.codec.decode(payload, room)
        elements.copy_(room)


_ALIGNMENT = 64  # bytes


def _energy(values: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return norm.square()
