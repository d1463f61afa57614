"""The bytes that a reduced tensor follows from, each rank's share of them, and the tensor back."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gradwire.comm.codecs.names import read
from gradwire.comm.errors import CommError
from gradwire.comm.layout import Range


@dataclass(frozen=True, eq=False)
class Encoded:
    """What one rank keeps of one reduced bucket; those of all ranks cover it exactly once.

    Attributes:
        bucket: Its number.
        codec: The codec that decodes the payload, as text; None where that holds elements as they are.
        ranges: Elements [start, stop) of the bucket, each encoded by itself.
        payload: uint8, on the CPU: the bytes of the ranges, one behind the other.
    """

    bucket: int
    codec: str | None
    ranges: tuple[Range, ...]
    payload: Tensor


@torch.no_grad()
def decode(encoded: Iterable[Encoded], out: Tensor) -> None:
    """Write a reduced bucket, with the bits that every rank had after the reduction.

    Args:
        encoded: What all ranks kept of it, in any order.
        out: [n], contiguous, of the bucket's dtype.

    Raises:
        CommError: They are not of one bucket, do not cover it exactly once, or are too long or short for it.
        CodecError: No codec is called so, or bytes that it never wrote.
    """
    shares = list(encoded)
    if out.dim() != 1 or not out.is_contiguous():
        raise CommError(f"a bucket is decoded into a contiguous tensor [n]; found {list(out.shape)}")
    if len({share.bucket for share in shares}) > 1:
        raise CommError(f"shares of one bucket belong together; found {sorted({share.bucket for share in shares})}")
    _check_cover([span for share in shares for span in share.ranges], out.numel())
    for share in shares:
        _decode(share, out)


def _check_cover(ranges: Iterable[Range], count: int) -> None:
    ordered = sorted(span for span in ranges if span[0] != span[1])
    for (_, stop), (start, _) in pairwise([(0, 0), *ordered, (count, count)]):
        if start != stop:
            what = "missing: is a rank's share?" if start > stop else "there more than once"
            raise CommError(f"elements {min(start, stop)} to {max(start, stop)} of a bucket of {count} are {what}")


def _decode(share: Encoded, out: Tensor) -> None:
    if share.codec is None:
        for span, part in _parts(share, [out.itemsize * (stop - start) for start, stop in share.ranges]):
            out[slice(*span)].view(torch.uint8).copy_(part)
        return
    codec = read(share.codec)
    for span, part in _parts(share, [codec.nbytes(stop - start) for start, stop in share.ranges]):
        elements, payload = out[slice(*span)], part.to(out.device)
        if elements.dtype == torch.float32:
            codec.decode(payload, elements)
        else:
            values = torch.empty(elements.numel(), dtype=torch.float32, device=out.device)
            codec.decode(payload, values)
            elements.copy_(values)


def _parts(share: Encoded, sizes: list[int]) -> Iterator[tuple[Range, Tensor]]:
    if share.payload.dtype != torch.uint8 or share.payload.shape != (sum(sizes),):
        raise CommError(
            f"the share {share.codec or 'raw'} of bucket {share.bucket} is uint8 [{sum(sizes)}]; "
            f"found {share.payload.dtype} {list(share.payload.shape)}"
        )
    return zip(share.ranges, torch.split(share.payload, sizes), strict=True)
