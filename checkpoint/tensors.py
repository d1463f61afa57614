"""Tensors as bytes: row-major, in the machine's little-endian order, cut into chunks; dtype and shape beside them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.checkpoint.coding import CODINGS, RAW
from gradwire.checkpoint.document import LARGEST, Fields, are_sizes, shown
from gradwire.checkpoint.errors import DamagedCheckpoint, UnsupportedState

CHUNK_BYTES = 2**20
LONGEST_CHUNK = 64 * 2**20
_CHUNK = ("pack", "offset", "stored", "length", "coding", "digest")

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        name: getattr(torch, name)
        for name in (
            *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
            *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
            *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
            "float4_e2m1fn_x2",
        )
    }
)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Chunk:
    """A run of a tensor's bytes, and where they are.

    Args:
        pack: Index into the part's list of packs.
        offset: First byte within the pack.
        stored: Number of bytes there.
        length: Number of the tensor's bytes, decoded.
        coding: What the stored bytes are: `raw`, or `planes+zstd` of elements of the tensor's size.
        digest: xxh3-128 of the decoded bytes, 32 hexadecimal digits.
    """

    pack: int
    offset: int
    stored: int
    length: int
    coding: str
    digest: str

    def to_json(self) -> list[Any]:
        return [self.pack, self.offset, self.stored, self.length, self.coding, self.digest]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a store.

    Args:
        dtype: Its type of element.
        shape: Its shape.
        chunks: Its bytes in order.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": list(self.shape),
            "chunks": [chunk.to_json() for chunk in self.chunks],
        }

    @classmethod
    def from_json(cls, fields: Fields, pack_sizes: tuple[int, ...]) -> "StoredTensor":
        """Read an entry of a part's list of tensors; shape, chunks and packs must fit each other.

        Raises:
            DamagedCheckpoint: they do not.
        """
        name = fields.text("dtype")
        if name not in DTYPES:
            raise fields.damaged("dtype", f"expected one of {', '.join(DTYPES)}")
        shape = fields.list("shape")
        if not are_sizes(shape):
            raise fields.damaged("shape", "expected sizes that a tensor can have")
        chunks = tuple(_chunk(value, pack_sizes, fields.where) for value in fields.list("chunks"))
        tensor = cls(DTYPES[name], tuple(shape), chunks)
        if sum(chunk.length for chunk in chunks) != tensor.nbytes:
            raise DamagedCheckpoint(f"{fields.where}: its chunks do not add up to its {tensor.nbytes} bytes")
        if any(chunk.length % tensor.dtype.itemsize for chunk in chunks):
            raise DamagedCheckpoint(f"{fields.where}: a chunk ends within an element")
        return tensor


def _chunk(value: object, pack_sizes: tuple[int, ...], where: str) -> Chunk:
    if not isinstance(value, list) or len(value) != len(_CHUNK):
        raise DamagedCheckpoint(f"{where}: {shown(value)} is not a chunk")
    fields = Fields(dict(zip(_CHUNK, value, strict=True)), where)
    chunk = Chunk(
        fields.integer("pack", 0, len(pack_sizes) - 1),
        fields.integer("offset", 0, LARGEST),
        fields.integer("stored", 1, LONGEST_CHUNK),
        fields.integer("length", 1, LONGEST_CHUNK),
        fields.text("coding"),
        fields.xxh3("digest"),
    )
    if chunk.coding not in CODINGS:
        raise fields.damaged("coding", f"expected one of {', '.join(CODINGS)}")
    if chunk.stored != chunk.length if chunk.coding == RAW else chunk.stored > chunk.length:
        raise fields.damaged("stored", f"expected what {chunk.length} bytes can take as {chunk.coding}")
    if chunk.offset + chunk.stored > pack_sizes[chunk.pack]:
        raise DamagedCheckpoint(f"{where}: a chunk reaches beyond its pack of {pack_sizes[chunk.pack]} bytes")
    return chunk


def check_truths(data: memoryview, dtype: torch.dtype, where: str) -> None:
    """Raise DamagedCheckpoint where the bytes of truth values hold anything but 0 and 1, which torch relies on."""
    if dtype == torch.bool and len(data) and int(np.frombuffer(data, np.uint8).max()) > 1:
        raise DamagedCheckpoint(f"{where} holds truth values that are neither 0 nor 1")


def check_storable(tensor: Tensor, path: str) -> None:
    """Raise UnsupportedState unless the tensor is a plain one: dense, with data, of a known dtype."""
    if hasattr(type(tensor), "__tensor_flatten__") or tensor.is_nested:
        raise UnsupportedState(
            f"{path} is a {type(tensor).__name__}, not a plain tensor: save its local or its full tensor instead"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        raise UnsupportedState(
            f"{path} is a tensor of {tensor.dtype} with layout {tensor.layout}: only dense tensors of "
            f"{', '.join(DTYPES)} can be saved"
        )
    if tensor.is_meta:
        raise UnsupportedState(f"{path} is on the meta device and has no data to save")


def cut(tensor: Tensor, length: int) -> Iterator[memoryview]:
    """The tensor's bytes in row-major order, `length` (a multiple of 16) at a time; what remains comes last.

    Each is good until the next is asked for. Equal tensors are cut equally, whatever their strides.
    """
    buffer, filled = np.empty(0, np.uint8).data, 0
    for piece in pieces(tensor, length):
        while piece:
            if filled == 0 and len(piece) == length:
                yield piece
                break
            if not buffer:
                buffer = np.empty(length, np.uint8).data
            taken = min(len(piece), length - filled)
            buffer[filled : filled + taken] = piece[:taken]
            piece, filled = piece[taken:], filled + taken
            if filled == length:
                yield buffer
                filled = 0
    if filled:
        yield buffer[:filled]


def pieces(tensor: Tensor, longest: int) -> Iterator[memoryview]:
    """The tensor's bytes in row-major order, at most `longest` (a multiple of 16) at a time, on the CPU.

    A contiguous CPU tensor is not copied; of any other, only the piece at hand is. Truth values become 0 and 1, which
    memory that was never written need not hold.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    bits = plain.view(_BITS[plain.dtype.itemsize]) if plain.dtype.itemsize in _BITS else plain
    for piece in _flat_pieces(bits, longest):
        data = piece.cpu().view(torch.uint8)
        yield (data.ne(0).view(torch.uint8) if plain.dtype == torch.bool else data).numpy().data


def _flat_pieces(bits: Tensor, longest: int) -> Iterator[Tensor]:
    size = bits.dtype.itemsize
    if bits.is_contiguous():
        yield from (piece for piece in torch.split(_flat(bits), longest // size) if piece.numel())
        return
    rows = longest // (bits[0].numel() * size)
    if rows == 0:
        for row in bits:
            yield from _flat_pieces(row, longest)
        return
    for block in torch.split(bits, rows):
        yield _flat(block.contiguous())


def _flat(bits: Tensor) -> Tensor:
    """A contiguous tensor with one axis of stride 1; reshape leaves a single element its odd stride."""
    return bits.as_strided((bits.numel(),), (1,))
