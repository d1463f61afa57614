"""Two bytes a value: float16."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.comm.codecs.codec import Codec
from gradwire.comm.codecs.half import Halves

_HALVES = Halves(torch.float16)


@dataclass(frozen=True)
class Fp16(Codec):
    """Rounded to eleven significant bits; finite values beyond ±65504 become ±65504."""

    name: ClassVar[str] = "fp16"

    def nbytes(self, count: int) -> int:
        return _HALVES.nbytes(count)

    def encode(self, values: Tensor, payload: Tensor, *, seed: int = 0, error: Tensor | None = None) -> None:
        self.check(values, payload, error)
        _HALVES.encode(values, payload, error)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        _HALVES.decode(payload, out)

    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        _HALVES.decode_add(payload, out)

    def prepare(self, device: torch.device | str = "cpu") -> None:
        _HALVES.prepare(device)
