"""Byte planes, compressed: the first bytes of all elements, then the second ones, and so on, in one zstd frame.

Sign and exponent of floating-point numbers repeat themselves where their fractions do not; apart from each other, the
former shrink (dense float32 weights to about 0.84 of their bytes, all in all) and the latter cost nothing but the try.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import zstandard

from gradwire.checkpoint.errors import DamagedCheckpoint

RAW = "raw"
PLANES = "planes+zstd"
CODINGS = (RAW, PLANES)
LEAST_BYTES = 1024  # what is shorter stays as it is
_LEVEL = 1  # the best there is for byte planes: higher ones take longer and leave more
_EVERY = 16
_BLOCK = 2**20  # bytes that become elements at a time
_WIDER = MappingProxyType({1: np.uint16, 2: np.uint32, 4: np.uint64})


@dataclass(frozen=True)
class Worth:
    """When coding is worth its time.

    Args:
        share: At most so much of the bytes is left.
        sample: First bytes of a chunk that tell whether to try all of it; all of it is tried where None.
    """

    share: float
    sample: int | None = None


FAR = Worth(0.95)
NEAR = Worth(0.5, 2**16)  # a local disk is read faster than chunks can be decoded


def encode(data: memoryview, item_size: int, share: float = FAR.share) -> bytes | None:
    """The bytes as compressed byte planes; None where more than a share of them is left.

    Args:
        data: [n] bytes of whole elements.
        item_size: Bytes of an element.
        share: The share.
    """
    length = len(data)
    planes = np.frombuffer(data, np.uint8)
    if item_size > 1:
        planes = np.ascontiguousarray(planes.reshape(-1, item_size).T)
    coded = zstandard.ZstdCompressor(level=_LEVEL).compress(planes.data)
    return coded if len(coded) <= length * share else None


def decode(data: memoryview | bytes, item_size: int, length: int, where: str = "a chunk") -> memoryview:
    """What `encode` was given.

    Args:
        data: What it made of that.
        item_size: Bytes of an element.
        length: [length] bytes come out; nothing larger is allocated.
        where: What is decoded, for messages.

    Raises:
        DamagedCheckpoint: the data are no zstd frame of that length.
    """
    decoder = Decoder()
    plain = decoder.planes(data, item_size, length, where)
    if item_size == 1:
        return memoryview(plain)
    elements = np.empty(length, np.uint8)
    decoder.join(plain, item_size, elements)
    return elements.data


Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Decoder:
    """Decodes chunks, one after the other, in memory that it uses again."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()
        self._paired: dict[int, Bytes] = {}  # by the size of what is paired

    def decode_into(self, target: memoryview, data: memoryview | bytes, item_size: int, where: str) -> None:
        """Put what `encode` was given where it belongs; arguments and errors as in `decode`.

        Args:
            target: As many bytes as come out.
        """
        self.join(self.planes(data, item_size, len(target), where), item_size, np.frombuffer(target, np.uint8))

    def planes(self, data: memoryview | bytes, item_size: int, length: int, where: str) -> bytes:
        """[length] byte planes, one after the other; arguments and errors as in `decode`."""
        try:
            stated = zstandard.frame_content_size(data)
            if stated != length or length % item_size:
                raise DamagedCheckpoint(f"{where} is compressed from {stated} bytes, expected {length}")
            return self._zstd.decompress(data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise DamagedCheckpoint(f"{where} cannot be decompressed: {error}") from error

    def join(self, plain: bytes, item_size: int, target: Bytes) -> None:
        """Make elements of byte planes.

        Args:
            plain: [n * item_size] planes.
            item_size: Bytes of an element.
            target: [n * item_size] elements.
        """
        planes, elements = np.frombuffer(plain, np.uint8).reshape(item_size, -1), target.reshape(-1, item_size)
        step = _BLOCK // item_size
        for start in range(0, len(elements), step):
            self._join_some(planes[:, start : start + step], elements[start : start + step])

    def _join_some(self, planes: "np.ndarray[Any, Any]", elements: Bytes) -> None:
        """Two planes at a time become one of numbers twice as wide: numpy takes far longer to transpose bytes."""
        while len(planes) > 2 and planes.itemsize in _WIDER:
            planes = _paired(planes, self._memory(planes.itemsize, planes.nbytes))
        if len(planes) == 2 and planes.itemsize in _WIDER:
            _paired(planes, elements.reshape(-1))
        else:
            np.copyto(elements.reshape(-1).view(planes.dtype).reshape(-1, len(planes)), planes.T)

    def _memory(self, item_size: int, size: int) -> Bytes:
        if item_size not in self._paired or len(self._paired[item_size]) < size:
            self._paired[item_size] = np.empty(size, np.uint8)
        return self._paired[item_size][:size]


def _paired(planes: "np.ndarray[Any, Any]", memory: Bytes) -> "np.ndarray[Any, Any]":
    """Planes of numbers of which every two planes hold the low and the high half."""
    joined = memory.view(_WIDER[planes.itemsize]).reshape(len(planes) // 2, -1)
    np.copyto(joined, planes[1::2])
    np.left_shift(joined, 8 * planes.itemsize, out=joined)
    np.bitwise_or(joined, planes[0::2], out=joined)
    return joined


class Coder:
    """Codes the chunks of one tensor, and finds out on the way whether that pays.

    Every sixteenth chunk is tried; those after it are coded if that one shrank.

    Args:
        item_size: Bytes of an element.
        worth: What counts as shrinking.
    """

    def __init__(self, item_size: int, worth: Worth = FAR) -> None:
        self._item_size = item_size
        self._worth = worth
        self._count = 0
        self._pays = True

    def code(self, data: memoryview) -> tuple[str, memoryview]:
        """The coding of a chunk, and what it makes of its bytes."""
        tried = self._pays or self._count % _EVERY == 0
        self._count += 1
        if not tried or len(data) < LEAST_BYTES:
            return RAW, data
        coded = self._coded(data)
        self._pays = coded is not None
        return (RAW, data) if coded is None else (PLANES, memoryview(coded))

    def _coded(self, data: memoryview) -> bytes | None:
        share, sample = self._worth.share, data[: self._worth.sample]
        if len(sample) < len(data) and encode(sample, self._item_size, share) is None:
            return None
        return encode(data, self._item_size, share)
