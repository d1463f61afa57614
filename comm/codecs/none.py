"""No compression: the bytes of the values."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.comm.codecs.codec import Codec


@dataclass(frozen=True)
class NoCodec(Codec):
    """Every bit as it was, infinities included; four bytes a value."""

    name: ClassVar[str] = "none"

    def nbytes(self, count: int) -> int:
        return 4 * count

    def encode(self, values: Tensor, payload: Tensor, *, seed: int = 0, error: Tensor | None = None) -> None:
        self.check(values, payload, error)
        payload.view(torch.float32).copy_(values)
        if error is not None:
            error.zero_()

    def decode(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        out.copy_(payload.view(torch.float32))

    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        out.add_(payload.view(torch.float32))
