"""Byte planes, compressed: the first bytes of all elements, then the second ones, and so on, in one zstd frame.

Sign and exponent of floating-point numbers repeat themselves where their fractions do not; apart from each other, the
former shrink (dense float32 weights to about 0.84 of their bytes, all in all) and the latter cost nothing but the try.
"""

from typing import Any

import numpy as np
import zstandard

from gradwire.checkpoint.errors import DamagedCheckpoint

RAW = "raw"
PLANES = "planes+zstd"
CODINGS = (RAW, PLANES)
LEAST_BYTES = 1024  # what is shorter stays as it is
_LEVEL = 1  # the best there is for byte planes: higher ones take longer and leave more
_WORTH = 0.95
_EVERY = 16


def encode(data: memoryview, item_size: int) -> bytes | None:
    """The bytes as compressed byte planes; None where that does not save at least a twentieth.

    Args:
        data: [n] bytes of whole elements.
        item_size: Bytes of an element.
    """
    length = len(data)
    planes = np.frombuffer(data, np.uint8)
    if item_size > 1:
        planes = np.ascontiguousarray(planes.reshape(-1, item_size).T)
    coded = zstandard.ZstdCompressor(level=_LEVEL).compress(planes.data)
    return coded if len(coded) <= length * _WORTH else None


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
    plain = _decompressed(data, item_size, length, where)
    if item_size == 1:
        return memoryview(plain)
    elements = np.empty(length, np.uint8)
    _put_together(plain, item_size, elements)
    return elements.data


def decode_into(target: memoryview, data: memoryview | bytes, item_size: int, where: str = "a chunk") -> None:
    """Put what `encode` was given where it belongs; arguments and errors as in `decode`.

    Args:
        target: As many bytes as come out.
    """
    _put_together(_decompressed(data, item_size, len(target), where), item_size, np.frombuffer(target, np.uint8))


def _decompressed(data: memoryview | bytes, item_size: int, length: int, where: str) -> bytes:
    """[length] byte planes, one after the other."""
    try:
        stated = zstandard.frame_content_size(data)
        if stated != length or length % item_size:
            raise DamagedCheckpoint(f"{where} is compressed from {stated} bytes, expected {length}")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedCheckpoint(f"{where} cannot be decompressed: {error}") from error


def _put_together(plain: bytes, item_size: int, target: "np.ndarray[Any, np.dtype[np.uint8]]") -> None:
    elements = target.reshape(-1, item_size)
    for index, plane in enumerate(np.frombuffer(plain, np.uint8).reshape(item_size, -1)):
        elements[:, index] = plane  # one by one: numpy takes five times as long to transpose


class Coder:
    """Codes the chunks of one tensor, and finds out on the way whether that pays.

    Every sixteenth chunk is tried; those after it are coded if that one shrank.

    Args:
        item_size: Bytes of an element.
    """

    def __init__(self, item_size: int) -> None:
        self._item_size = item_size
        self._count = 0
        self._pays = True

    def code(self, data: memoryview) -> tuple[str, memoryview]:
        """The coding of a chunk, and what it makes of its bytes."""
        tried = self._pays or self._count % _EVERY == 0
        self._count += 1
        if not tried or len(data) < LEAST_BYTES:
            return RAW, data
        coded = encode(data, self._item_size)
        self._pays = coded is not None
        return (RAW, data) if coded is None else (PLANES, memoryview(coded))
