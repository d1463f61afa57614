"""Randomly chosen values; where they are follows from a seed."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.comm.codecs.codec import Codec
from gradwire.comm.codecs.rounding import row_keys
from gradwire.comm.codecs.sparse import check_ratio, has_no_number, kept

_HEADER = 8  # bytes: the seed


@dataclass(frozen=True)
class RandomK(Codec):
    """One value, at random, out of each stretch of 1/ratio values: four bytes for each that is sent, exact.

    With the same seed every rank sends the same positions, so the values' sum is again so sparse: give all ranks one
    seed for a tensor and update, and another one at the next update (the same positions for ever would never send the
    others). Not scaled up by 1/ratio: error feedback sends later what was left out (arXiv 1809.07599).
    If any value is NaN or infinite, all are decoded as NaN.

    Args:
        ratio: the share of values that is sent.
    """

    name: ClassVar[str] = "random_k"
    feedback: ClassVar[bool] = True
    ratio: float = 0.01

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    def nbytes(self, count: int) -> int:
        return _HEADER + 4 * kept(self.ratio, count)

    def encode(self, values: Tensor, payload: Tensor, *, seed: int = 0, error: Tensor | None = None) -> None:
        self.check(values, payload, error)
        signed = (seed + 2**63) % 2**64 - 2**63
        payload[:_HEADER].copy_(torch.tensor([signed]).view(torch.uint8))
        sent = payload[_HEADER:].view(torch.float32)
        if has_no_number(values):
            sent.fill_(float("nan"))
            if error is not None:
                error.fill_(float("nan"))
            return
        positions = self.positions(payload, values.numel())
        sent.copy_(values[positions])
        if error is not None:
            error.copy_(values)
            error[positions] = 0.0

    def positions(self, payload: Tensor, count: int) -> Tensor:
        """Where the payload's values belong: ascending, int64 [kept]."""
        number = kept(self.ratio, count)
        seed = int.from_bytes(bytes(payload[:_HEADER].tolist()), "little")
        bounds = torch.arange(number + 1, device=payload.device) * count // max(1, number)
        draws = row_keys(seed, number, 0, payload.device).long() & 0x7FFFFFFF
        return bounds[:-1] + draws % (bounds[1:] - bounds[:-1])

    def decode(self, payload: Tensor, out: Tensor) -> None:
        self.decode_add(payload, out.zero_())

    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        sent = payload[_HEADER:].view(torch.float32)
        if bool(sent.isnan().any()):
            out.fill_(float("nan"))
        else:
            out.index_add_(0, self.positions(payload, out.numel()), sent)
