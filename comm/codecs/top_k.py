"""The largest values and where they are."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from gradwire.comm.codecs.codec import Codec
from gradwire.comm.codecs.sparse import Entries, check_ratio, has_no_number, kept
from gradwire.comm.errors import CodecError

Threshold = Literal["exact", "sampled"]

_SAMPLES = 16_384
_SIGMAS = 4  # by which a sampled threshold is lowered, so that enough values pass it


@dataclass(frozen=True)
class TopK(Codec):
    """The values of largest magnitude, rounded to bfloat16: four bytes for each that is sent (arXiv 1704.05021).

    Every sampled threshold is followed by an exact choice among the values that pass it, so both ways send the same
    values as long as enough pass; where not (a sample that misled), fewer are sent and error feedback keeps the rest.
    If any value is NaN or infinite, all are decoded as NaN.

    Args:
        ratio: the share of values that is sent.
        threshold: exact sorts out the largest of all values; sampled first drops what is below a threshold that a
            sample of 16,384 values suggests, several times faster. Which ones are sampled depends on the seed.
    """

    name: ClassVar[str] = "top_k"
    feedback: ClassVar[bool] = True
    ratio: float = 0.01
    threshold: Threshold = "sampled"

    def __post_init__(self) -> None:
        check_ratio(self.ratio)
        if self.threshold not in get_args(Threshold):
            raise CodecError(f"threshold is one of {', '.join(get_args(Threshold))}, found {self.threshold!r}")

    def _entries(self, count: int) -> Entries:
        return Entries(count, kept(self.ratio, count))

    def nbytes(self, count: int) -> int:
        return self._entries(count).nbytes()

    def encode(self, values: Tensor, payload: Tensor, *, seed: int = 0, error: Tensor | None = None) -> None:
        self.check(values, payload, error)
        entries = self._entries(values.numel())
        if has_no_number(values):
            entries.write_nothing(payload)
            if error is not None:
                error.fill_(float("nan"))
            return
        positions = self._largest(values, entries.kept, seed)
        decoded = entries.write(payload, positions, values[positions])
        if error is not None:
            error.copy_(values)
            error[positions] = values[positions] - decoded

    def _largest(self, values: Tensor, number: int, seed: int) -> Tensor:
        """Ascending positions of at most `number` values."""
        magnitudes = values.abs()
        if self.threshold == "exact" or values.numel() < 4 * _SAMPLES:
            return magnitudes.topk(number, sorted=False).indices.sort().values
        candidates = _at_least(magnitudes, _threshold(magnitudes, self.ratio, seed))
        if candidates.numel() <= number:
            return candidates
        return candidates[_largest_of(magnitudes[candidates], number)]

    def positions(self, payload: Tensor, count: int) -> Tensor:
        """Where the payload has values other than zero: ascending, int64, at most as many as are kept."""
        positions, decoded = self._entries(count).read(payload)
        return positions[decoded != 0]

    def decode(self, payload: Tensor, out: Tensor) -> None:
        self.decode_add(payload, out.zero_())

    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        self.check(out, payload)
        positions, decoded = self._entries(out.numel()).read(payload)
        if bool(decoded.isnan().any()):
            out.fill_(float("nan"))
        else:
            out.index_add_(0, positions, decoded)


def _threshold(magnitudes: Tensor, ratio: float, seed: int) -> Tensor:
    """The magnitude that about the wanted share of a sample exceeds, and four standard deviations more."""
    stride = magnitudes.numel() // _SAMPLES | 1  # odd: shapes are mostly even
    sample = magnitudes[seed % stride :: stride]
    above = ratio * sample.numel()
    rank = math.ceil(above + _SIGMAS * math.sqrt(above) + _SIGMAS)
    if rank >= sample.numel():
        return sample.new_zeros(())
    return sample.kthvalue(sample.numel() - rank).values


def _at_least(magnitudes: Tensor, threshold: Tensor) -> Tensor:
    """Ascending positions of magnitudes at or above the threshold and above zero."""
    threshold = threshold.clamp(min=torch.finfo(torch.float32).smallest_normal)
    if magnitudes.device.type != "cpu":
        return (magnitudes >= threshold).nonzero()[:, 0]
    passing = magnitudes.numpy() >= threshold.numpy()  # NumPy compares and searches several times faster
    return torch.from_numpy(np.flatnonzero(passing))


def _largest_of(magnitudes: Tensor, number: int) -> Tensor:
    """A mask of the largest `number`; of equal ones the first are taken."""
    least = magnitudes.kthvalue(magnitudes.numel() - number + 1).values
    above, ties = magnitudes > least, magnitudes == least
    return above | (ties & (ties.cumsum(0) <= number - above.sum()))
