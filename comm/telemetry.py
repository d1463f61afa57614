"""What the communication costs: bytes, seconds and relative errors, by axis."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.comm.transport import Exchange


@dataclass
class Meter:
    """What one stage did since it was read last. Each field is written by one thread only.

    Attributes:
        axis: The axis that the stage runs along.
        sent: Bytes that this rank sent.
        uncompressed: Bytes that the same elements take as they are.
        encoding: Seconds.
        decoding: Seconds.
        waiting: Seconds spent waiting for peers.
        errors: For each segment measured the squared norms, float64, of what was lost and of what was encoded.
    """

    axis: str
    sent: int = 0
    uncompressed: int = 0
    encoding: float = 0.0
    decoding: float = 0.0
    waiting: float = 0.0
    errors: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def reset(self) -> None:
        self.sent, self.uncompressed, self.encoding, self.decoding, self.waiting = 0, 0, 0.0, 0.0, 0.0
        self.errors.clear()

    def timed_arrivals(self, exchange: Exchange) -> Iterator[int]:
        """`exchange.arrivals()`, with the time that waiting took added to `waiting`."""
        begun = time.perf_counter()
        for place in exchange.arrivals():
            self.waiting += time.perf_counter() - begun
            yield place
            begun = time.perf_counter()


@dataclass(frozen=True)
class Traffic:
    """What reductions cost a rank along one axis.

    Attributes:
        sent: Bytes that it sent.
        encoding: Seconds.
        decoding: Seconds.
        waiting: Seconds spent waiting for peers, added up over the stages that wait at the same time.
        error: Relative error of what was measured: norm of what encoding lost over the norm of what was encoded. None
            where nothing was.
        uncompressed: Bytes that the elements sent take as they are.
    """

    sent: int
    encoding: float
    decoding: float
    waiting: float
    error: float | None
    uncompressed: int = 0


def traffic(meters: Iterable[Meter]) -> dict[str, Traffic]:
    """Read the meters, by axis, and set them back."""
    by_axis: dict[str, list[Meter]] = {}
    for meter in meters:
        by_axis.setdefault(meter.axis, []).append(meter)
    return {axis: _added(group) for axis, group in by_axis.items()}


def _added(meters: Sequence[Meter]) -> Traffic:
    lost, encoded = (sum(float(pair[side]) for meter in meters for pair in meter.errors) for side in (0, 1))
    added = Traffic(
        sent=sum(meter.sent for meter in meters),
        encoding=sum(meter.encoding for meter in meters),
        decoding=sum(meter.decoding for meter in meters),
        waiting=sum(meter.waiting for meter in meters),
        error=math.sqrt(lost / encoded) if encoded > 0 else None,
        uncompressed=sum(meter.uncompressed for meter in meters),
    )
    for meter in meters:
        meter.reset()
    return added


def together(costs: Sequence[Traffic]) -> Traffic:
    """Several as one; the error is the mean of theirs."""
    errors = [cost.error for cost in costs if cost.error is not None]
    return Traffic(
        sent=sum(cost.sent for cost in costs),
        encoding=sum(cost.encoding for cost in costs),
        decoding=sum(cost.decoding for cost in costs),
        waiting=sum(cost.waiting for cost in costs),
        error=sum(errors) / len(errors) if errors else None,
        uncompressed=sum(cost.uncompressed for cost in costs),
    )


NOTHING = Traffic(0, 0.0, 0.0, 0.0, None)


def by_axis(costs: Sequence[Mapping[str, Traffic]]) -> dict[str, Traffic]:
    """Several reductions as one, by axis."""
    axes = dict.fromkeys(axis for each in costs for axis in each)
    return {axis: together([each[axis] for each in costs if axis in each]) for axis in axes}


def energy(values: Tensor) -> Tensor:
    """The squared norm, float64."""
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return norm.square()
