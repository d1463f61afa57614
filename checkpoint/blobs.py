"""Tensors of the journal's entries: which elements they are, what their bytes mean, and how those are stored."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from gradwire.checkpoint.coding import Decoder, encode
from gradwire.checkpoint.document import LARGEST, Fields, are_sizes
from gradwire.checkpoint.errors import DamagedCheckpoint, UnsupportedState
from gradwire.checkpoint.tensors import DTYPES, check_storable, check_truths

LONGEST_BLOB = 8 * 2**30
CHUNK = 4 * 2**20  # bytes that are coded and proven together
_CODING = re.compile(r"raw|planes\+zstd|encoded:[ -~]{1,1000}")
_DIGEST = re.compile(r"[0-9a-f]{32}")

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Blob:
    """A tensor, or the bytes that it can be decoded from.

    Args:
        data: Elements of any dtype that can be saved; [n] uint8 where they are encoded.
        ranges: Elements [start, stop) of something longer (a bucket) that the data stand for, in their order; none
            where they are a tensor of their own.
        coding: `raw`: stored as it is; `planes+zstd`: byte planes, compressed where that pays; `encoded:<codec>`: bytes
            of a codec of the caller's, compressed where that pays.
    """

    data: Tensor
    ranges: Ranges = ()
    coding: str = "planes+zstd"


@dataclass(frozen=True)
class BlobChunk:
    """Some of a blob's bytes: CHUNK of them, or what the last one has left.

    Args:
        stored: Number of bytes in the entry; fewer than it stands for where they are compressed.
        digest: xxh3-128 of what it stands for, 32 hexadecimal digits.
    """

    stored: int
    digest: str


@dataclass(frozen=True)
class StoredBlob:
    """A tensor of an entry, as the entry's header tells of it.

    Args:
        dtype: Type of its elements.
        shape: Its shape.
        ranges: As in Blob.
        coding: As in Blob.
        length: Number of its bytes.
        chunks: Where they are, in order.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    ranges: Ranges
    coding: str
    length: int
    chunks: tuple[BlobChunk, ...]

    @property
    def stored(self) -> int:
        """Number of bytes in the entry."""
        return sum(chunk.stored for chunk in self.chunks)

    def to_json(self) -> dict[str, Any]:
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": list(self.shape),
            "ranges": [list(span) for span in self.ranges],
            "coding": self.coding,
            "length": self.length,
            "chunks": [[chunk.stored, chunk.digest] for chunk in self.chunks],
        }

    @classmethod
    def from_json(cls, fields: Fields) -> "StoredBlob":
        """Read an entry of a header's list of tensors; its numbers must fit each other.

        Raises:
            DamagedCheckpoint: they do not.
        """
        name = fields.text("dtype")
        if name not in DTYPES:
            raise fields.damaged("dtype", f"expected one of {', '.join(DTYPES)}")
        shape = fields.list("shape")
        if not are_sizes(shape):
            raise fields.damaged("shape", "expected sizes that a tensor can have")
        blob = cls(
            DTYPES[name],
            tuple(shape),
            _ranges(fields),
            fields.text("coding"),
            fields.integer("length", 0, LONGEST_BLOB),
            _chunks(fields),
        )
        blob._check(fields)
        return blob

    def _check(self, fields: Fields) -> None:
        if not _CODING.fullmatch(self.coding):
            raise fields.damaged("coding", "expected 'raw', 'planes+zstd' or 'encoded:<codec>'")
        if self.length != math.prod(self.shape) * self.dtype.itemsize:
            raise fields.damaged("length", "expected that of its elements")
        lengths = _lengths(self.length)
        if len(self.chunks) != len(lengths):
            raise fields.damaged("chunks", f"expected one for every {CHUNK} bytes")
        for chunk, length in zip(self.chunks, lengths, strict=True):
            if chunk.stored > length or (self.coding == "raw" and chunk.stored != length):
                raise fields.damaged("chunks", f"expected no more than {length} bytes, and as many where it is raw")
        wrong = _contradiction(self.coding, self.dtype, self.shape, self.ranges)
        if wrong:
            raise DamagedCheckpoint(f"{fields.where}: {wrong}")


def _ranges(fields: Fields) -> Ranges:
    spans = fields.list("ranges")
    for span in spans:
        if not isinstance(span, list) or len(span) != 2 or not all(type(end) is int for end in span):
            raise fields.damaged("ranges", "expected pairs of numbers")
        if not 0 <= span[0] <= span[1] <= LARGEST:
            raise fields.damaged("ranges", "expected pairs of a start and a stop not before it")
    return tuple((start, stop) for start, stop in spans)


def _chunks(fields: Fields) -> tuple[BlobChunk, ...]:
    chunks = fields.list("chunks")
    for chunk in chunks:
        if not isinstance(chunk, list) or len(chunk) != 2 or type(chunk[0]) is not int or chunk[0] < 1:
            raise fields.damaged("chunks", "expected pairs of a length and a digest")
        if not isinstance(chunk[1], str) or not _DIGEST.fullmatch(chunk[1]):
            raise fields.damaged("chunks", "expected digests of 32 hexadecimal digits")
    return tuple(BlobChunk(stored, digest) for stored, digest in chunks)


def _lengths(length: int) -> Sequence[int]:
    """How many bytes each chunk of so many stands for."""
    whole, rest = divmod(length, CHUNK)
    return [*[CHUNK] * whole, *[rest] * (rest > 0)]


def _contradiction(coding: str, dtype: torch.dtype, shape: tuple[int, ...], ranges: Ranges) -> str | None:
    if coding.startswith("encoded:"):
        return None if dtype == torch.uint8 and len(shape) == 1 else "encoded data must be [n] uint8"
    count, elements = sum(stop - start for start, stop in ranges), math.prod(shape)
    return f"its ranges hold {count} elements and it has {elements}" if ranges and count != elements else None


def check_blob(name: str, blob: Blob) -> None:
    """Raise UnsupportedState unless an entry can hold the blob."""
    check_storable(blob.data, name)
    if not _CODING.fullmatch(blob.coding):
        raise UnsupportedState(
            f"{name} has the coding {blob.coding[:80]!r}; there are 'raw', 'planes+zstd' and 'encoded:<codec>'"
        )
    wrong = _contradiction(blob.coding, blob.data.dtype, tuple(blob.data.shape), blob.ranges)
    if wrong or blob.data.nbytes > LONGEST_BLOB or any(not 0 <= start <= stop for start, stop in blob.ranges):
        raise UnsupportedState(f"{name}: {wrong or f'it is longer than {LONGEST_BLOB} bytes, or a range is none'}")


def bytes_of(data: Tensor) -> Tensor:
    """[n] uint8, the tensor's bytes in row-major order; a view where it is contiguous."""
    plain = data.detach().resolve_conj().resolve_neg().contiguous()
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)  # reshape leaves a single element its odd stride


def store_blob(blob: Blob) -> tuple[StoredBlob, list[memoryview]]:
    """What the header says of a blob, and the bytes that are stored."""
    elements = bytes_of(blob.data)
    data = (elements.ne(0).view(torch.uint8) if blob.data.dtype == torch.bool else elements).cpu().numpy().data
    chunks, pieces = [], []
    for start in range(0, len(data), CHUNK):
        plain = data[start : start + CHUNK]
        piece = _coded(plain, blob)
        chunks.append(BlobChunk(len(piece), xxhash.xxh3_128_hexdigest(plain)))
        pieces.append(piece)
    shape = tuple(blob.data.shape)
    return StoredBlob(blob.data.dtype, shape, blob.ranges, blob.coding, len(data), tuple(chunks)), pieces


def _coded(plain: memoryview, blob: Blob) -> memoryview:
    coded = None if blob.coding == "raw" else encode(plain, blob.data.dtype.itemsize)
    return plain if coded is None or len(coded) >= len(plain) else memoryview(coded)


def load_blob(blob: StoredBlob, data: memoryview, where: str) -> Blob:
    """The blob of stored bytes; the caller has seen to it that there is memory for it.

    Raises:
        DamagedCheckpoint: they are not those that the header tells of.
    """
    tensor = torch.empty(blob.shape, dtype=blob.dtype)
    memory = bytes_of(tensor).numpy().data
    _decode(blob, data, where, lambda start, length: memory[start : start + length])
    return Blob(tensor, blob.ranges, blob.coding)


def prove_blob(blob: StoredBlob, data: memoryview, where: str) -> None:
    """Prove stored bytes as `load_blob` does, in the memory of one chunk; arguments and errors as there."""
    bench = np.empty(min(blob.length, CHUNK), np.uint8).data
    _decode(blob, data, where, lambda start, length: bench[:length])


def _decode(blob: StoredBlob, data: memoryview, where: str, memory: Callable[[int, int], memoryview]) -> None:
    """Decode and prove a blob's chunks, each in the memory that is given for its place in the blob and its length."""
    start, decoder = 0, Decoder()
    for chunk, length in zip(blob.chunks, _lengths(blob.length), strict=True):
        place = memory(start, length)
        if chunk.stored == length:
            place[:] = data[:length]
        else:
            decoder.decode_into(place, data[: chunk.stored], blob.dtype.itemsize, where)
        if xxhash.xxh3_128_hexdigest(place) != chunk.digest:
            raise DamagedCheckpoint(f"{where} is altered: its bytes do not have the digest {chunk.digest}")
        check_truths(place, blob.dtype, where)
        data, start = data[chunk.stored :], start + length
