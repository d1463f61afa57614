"""What every codec does: float32 values into bytes of known length, and back."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.comm.compression import Compression
from gradwire.comm.errors import CodecError

ALIGNMENT = 4  # bytes: payloads begin at multiples of it in their storage and are as long as a multiple of it


def padded(nbytes: int) -> int:
    """The number of bytes with the padding that keeps what follows aligned."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Codec(Compression):
    """Values [n] float32 ⇄ payload [nbytes(n)] uint8, both contiguous and on one device.

    What comes out is a function of the payload alone, so ranks that decode the same bytes hold the same bits. What goes
    in decides the payload together with `seed`, which codecs without random choices ignore. Values that are NaN or
    infinite come out as NaN, with the whole block that shared their scale (the whole tensor for sparse codecs).
    """

    aligned: ClassVar[bool] = False  # must all ranks of a line be given the same seed, so that their choices agree?

    @property
    def granule(self) -> int:
        """Tensors are cut at multiples of so many elements."""
        return 1

    def at(self, update: int) -> "Codec":
        """The codec of an update, counted from 0: itself, unless it changes in the course of a run."""
        return self

    @abstractmethod
    def nbytes(self, count: int) -> int:
        """The length of the payload of `count` elements, a multiple of four."""

    @abstractmethod
    def encode(self, values: Tensor, payload: Tensor, *, seed: int = 0, error: Tensor | None = None) -> None:
        """Write the payload of the values and, where asked for, error [n] = values − decoded.

        The error may not overlap the values or the payload. Random choices are a function of the seed and the position.
        """

    @abstractmethod
    def decode(self, payload: Tensor, out: Tensor) -> None:
        """Write the payload's values into out [n]."""

    @abstractmethod
    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        """Add the payload's values to out [n]: the bits of out + decoded."""

    def prepare(self, device: torch.device | str = "cpu") -> None:
        """Compile what pays on the device, once a process (some ten seconds the first time on a machine).

        Without it, or without a C++ compiler, the same functions run uncompiled: several times slower, the same bits.
        """

    def check(self, values: Tensor, payload: Tensor, error: Tensor | None = None) -> None:
        """Raise CodecError where tensors are not what encode and decode take."""
        for what, tensor in (("values", values), ("error", error)):
            if tensor is not None and not (
                tensor.dtype == torch.float32 and tensor.dim() == 1 and tensor.is_contiguous()
            ):
                raise CodecError(
                    f"{self.name}: {what} must be contiguous float32 [n], found {tensor.dtype} {list(tensor.shape)}"
                )
        if error is not None and error.numel() != values.numel():
            raise CodecError(f"{self.name}: {values.numel()} values and an error of {error.numel()}")
        expected = self.nbytes(values.numel())
        if payload.dtype != torch.uint8 or payload.shape != (expected,) or not payload.is_contiguous():
            raise CodecError(
                f"{self.name}: the payload of {values.numel()} values is contiguous uint8 [{expected}], "
                f"found {payload.dtype} {list(payload.shape)}"
            )
        if payload.storage_offset() % ALIGNMENT:
            raise CodecError(
                f"{self.name}: payloads begin at multiples of {ALIGNMENT} bytes of their storage, "
                f"found {payload.storage_offset()}"
            )
