"""What the communication costs: bytes, seconds and relative errors, by axis."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from gradwire.comm.transport import Exchange


@dataclass
class Meter:
    """What one stage did since it was read last. Each field is written by one thread only.

    Attributes:
        axis: The axis that the stage runs along.
        sent: Bytes that this rank sent.
        encoding: Seconds.
        decoding: Seconds.
        waiting: Seconds spent waiting for peers.
        errors: For each segment measured the squared norms, float64, of what was lost and of what was encoded.
    """

    axis: str
    sent: int = 0
    encoding: float = 0.0
    decoding: float = 0.0
    waiting: float = 0.0

    def __post_init__(self) -> None:
        self.errors: list[tuple[Tensor, Tensor]] = []

    def timed_arrivals(self, exchange: Exchange) -> Iterator[int]:
        """`exchange.arrivals()`, with the time that waiting took added to `waiting`."""
        begun = time.perf_counter()
        for place in exchange.arrivals():
            self.waiting += time.perf_counter() - begun
            yield place
            begun = time.perf_counter()
