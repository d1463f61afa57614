"""Keeping, while a tensor is reduced, this rank's share of the bytes that the result follows from.

Along the last coded all-gather that a segment goes through, everyone decodes what the owners encoded; what comes after
it only copies. So these bytes are all that is needed. Where no axis has a codec, ranks keep equal shares of the result.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.comm.codecs.codec import Codec
from gradwire.comm.codecs.names import spelled
from gradwire.comm.encoded import Encoded
from gradwire.comm.errors import CodecError, CommError
from gradwire.comm.layout import Portion, Range
from gradwire.comm.pieces import cut
from gradwire.comm.transport import Line


@dataclass(frozen=True)
class Piece:
    """What this rank keeps of one segment.

    Attributes:
        span: The elements; none where another rank keeps them.
        codec: Encodes them; None: as they are, at the end.
        depth: Of the axis whose owners' bytes these are.
    """

    span: Range
    codec: Codec | None = None
    depth: int | None = None

    def nbytes(self, itemsize: int) -> int:
        count = self.span[1] - self.span[0]
        if not count:
            return 0
        return count * itemsize if self.codec is None else self.codec.nbytes(count)


def piece(
    place: int, held: Sequence[Portion], lines: Sequence[Line], codecs: Sequence[Codec | None], raw: Range
) -> Piece:
    """This rank's piece of a segment.

    Those along later axes own the same bytes; segments are dealt out among them.

    Args:
        place: Number of the segment among those of the tensor that take the axes in this order.
        held: What this rank holds of it before each axis.
        lines: Along each axis.
        codecs: Of each axis.
        raw: This rank's share of the tensor where it is kept as it is.
    """
    depth = next((depth for depth, codec in enumerate(codecs) if codec is not None), None)
    codec = None if depth is None else codecs[depth]
    if depth is None or codec is None or not _is_known(codec):
        start, stop = max(held[0].start, raw[0]), min(held[0].stop, raw[1])
        return Piece((start, max(start, stop)))
    number, ranks = 0, 1
    for line in lines[depth + 1 :]:
        number, ranks = number * line.size + line.position, ranks * line.size
    start, stop = held[depth].own
    return Piece((start, stop if place % ranks == number else start), codec, depth)


@dataclass(frozen=True, eq=False)
class Kept:
    """Where the bytes of a piece go."""

    piece: Piece
    room: Tensor

    def copy(self, source: Tensor) -> None:
        self.room.copy_(source.view(torch.uint8), non_blocking=True)


class Rooms:
    """Memory on the CPU that is used again; what is not given back is the taker's."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._free: list[Tensor] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Tensor:
        """At least so many bytes."""
        with self._lock:
            for place, room in enumerate(self._free):
                if room.numel() >= nbytes:
                    return self._free.pop(place)
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._pinned)

    def give_back(self, room: Tensor) -> None:
        with self._lock:
            if all(room is not free for free in self._free):
                self._free.append(room)


@dataclass(frozen=True, eq=False)
class _Share(Encoded):
    """As it is handed out, with the memory that the payload is the beginning of."""

    room: Tensor


class Record:
    """This rank's share of one tensor that is reduced again and again.

    Args:
        bucket: Its number.
        count: Elements that matter, the first ones; those behind have to be such as no codec sees.
        rank: This rank among those that reduce it.
        ranks: How many there are.
        device: Of the tensor.
    """

    def __init__(self, bucket: int, count: int, rank: int, ranks: int, device: torch.device) -> None:
        self.raw = cut(0, count, ranks)[rank]
        self._bucket = bucket
        self._rooms = Rooms(pinned=device.type == "cuda")
        self._shares: list[_Share] = []

    def begin(self, pieces: Sequence[Piece], tensor: Tensor) -> list[Kept | None]:
        """A reduction begins: where the bytes of each piece go, those of the one before being forgotten."""
        if tensor.is_complex():
            raise CommError(f"reductions of real numbers are recorded; found {tensor.dtype}")
        self.forget()
        groups: dict[str | None, list[int]] = {}
        for place, each in enumerate(pieces):
            groups.setdefault(None if each.codec is None else spelled(each.codec), []).append(place)
        found: list[Kept | None] = [None] * len(pieces)
        for codec, places in groups.items():
            whole = [place for place in places if pieces[place].nbytes(tensor.itemsize)]
            sizes = [pieces[place].nbytes(tensor.itemsize) for place in whole]
            room = self._rooms.take(sum(sizes))
            payload = room[: sum(sizes)]
            for place, part in zip(whole, torch.split(payload, sizes) if whole else (), strict=True):
                found[place] = Kept(pieces[place], part)
            spans = [pieces[place].span for place in whole]
            ranges = tuple(spans if codec else _joined(spans))
            self._shares.append(_Share(self._bucket, codec, ranges, payload, room))
        return found

    def take(self) -> list[Encoded]:
        """What was kept; the memory goes along, until it is given back."""
        shares, self._shares = self._shares, []
        return list(shares)

    def forget(self) -> None:
        """What was kept is not wanted."""
        for share in self.take():
            self.give_back(share)

    def give_back(self, share: Encoded) -> None:
        if isinstance(share, _Share):
            self._rooms.give_back(share.room)


def _joined(spans: Sequence[Range]) -> list[Range]:
    """Without borders between neighbors."""
    found: list[Range] = []
    for start, stop in spans:
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, stop))
    return found


def _is_known(codec: Codec) -> bool:
    """Whether text can say what it is."""
    try:
        spelled(codec)
    except CodecError:
        return False
    return True
