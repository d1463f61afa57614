"""A few numbers behind the gradients of the last bucket, which spare small updates an exchange of their own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.comm.errors import CommError

_BITS = 16  # of a whole number in one element: sums over 256 ranks stay exact in float32
_PARTS = 4
NUMBERS = 4  # that fit
SIZE = 1 + _PARTS * NUMBERS  # elements
_MOST_RANKS = 256


def check(numbers: Sequence[int]) -> None:
    """Refuse what cannot be summed over the ranks.

    Raises:
        CommError: More than `NUMBERS`, or one that is negative or too large.
    """
    if len(numbers) > NUMBERS or any(not 0 <= number < 2**63 for number in numbers):
        raise CommError(f"at most {NUMBERS} whole numbers from 0 on can be carried; found {list(numbers)}")


class Postscript:
    """Whether every rank had every gradient, and the sums of a few whole numbers, reduced along with the last bucket.

    Args:
        tail: Its last `SIZE` elements, float32 or float64 on the CPU, where reading them waits for nothing.
        ranks: Number of ranks.
    """

    def __init__(self, tail: Tensor, ranks: int) -> None:
        self._tail = tail
        self._ranks = ranks

    @staticmethod
    def fits(dtype: torch.dtype, device: torch.device, ranks: int) -> bool:
        """Whether sums over so many ranks are exact in these elements, and cheap to read."""
        return dtype in (torch.float32, torch.float64) and device.type == "cpu" and 1 < ranks <= _MOST_RANKS

    def write(self, complete: bool, numbers: Sequence[int]) -> None:
        """Before the bucket is sent: does this rank have every gradient, and what is to be summed."""
        parts = [number >> (_BITS * part) & ((1 << _BITS) - 1) for number in numbers for part in range(_PARTS)]
        values = [int(complete), *parts]
        self._tail.copy_(torch.tensor(values + [0] * (SIZE - len(values)), dtype=self._tail.dtype))

    def read(self, count: int) -> list[int] | None:
        """After it was reduced: the sums of `count` numbers; None unless every rank had every gradient."""
        complete, *parts = map(int, self._tail.tolist())
        if complete != self._ranks:
            return None
        rows = (parts[_PARTS * place : _PARTS * (place + 1)] for place in range(count))
        return [sum(part << (_BITS * place) for place, part in enumerate(row)) for row in rows]
