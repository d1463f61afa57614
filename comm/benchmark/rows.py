"""What the contest's figures say: bandwidths, ratios of paired rounds, and what is wrong."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.comm.benchmark.contenders import Shape, contender
from gradwire.comm.benchmark.contest import Measured, limit
from gradwire.comm.benchmark.paired import compare, interval

Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Row:
    """One contender at one size. Intervals are a median with its 95 % bootstrap interval.

    Attributes:
        seconds: Of a call, by round; the slowest rank's.
        calls: In a block.
        milliseconds: Their median.
        algbw: Bytes of the tensor a second.
        busbw: algbw × 2(P−1)/P, the bytes that a rank must send in a ring; of uncompressed numbers.
        payload: Bytes that a host must send.
        wire: Bytes that a host sent, by its network interface; that a rank sent, by our meters, where that cannot be
            read; None where nobody counted.
        wire_from: "interface" or "meters".
        counted: Bytes that a rank sent along all axes by our meters; None for others than ours.
        of_bound: The least time that the payload takes on the link, over the time taken.
        over_backend: How many times as fast as the backend's own.
        over_exchange: The same against a bare exchange of the same bytes.
        error: The largest relative error met; None for what reduces nothing.
        allowed: The error past which a result is wrong.
        same_bits: Whether all ranks always held the same; None for what reduces nothing.
    """

    seconds: tuple[float, ...]
    calls: int
    milliseconds: float
    algbw: float
    busbw: float
    payload: int
    wire: float | None
    wire_from: str | None
    counted: float | None
    of_bound: Interval | None
    over_backend: Interval | None
    over_exchange: Interval | None
    error: float | None
    allowed: float | None
    same_bits: bool | None


def rows(
    measured: Mapping[str, Measured], shape: Shape, elements: int, backend: str, link: float | None
) -> dict[str, Row]:
    """A row for every contender.

    Args:
        measured: By contender.
        shape: How the ranks are arranged.
        elements: Float32 numbers of the tensor.
        backend: The contender that the others are compared with, if it took part.
        link: Bytes a second that a host can send; no bound where None.
    """
    return {name: _row(name, measured, shape, elements, backend, link) for name in measured}


def _row(
    name: str, measured: Mapping[str, Measured], shape: Shape, elements: int, backend: str, link: float | None
) -> Row:
    each, found = contender(name), measured[name]
    payload = each.payload(shape, elements)
    median = statistics.median(found.seconds)
    sent, counted = (_known(statistics.median(values)) for values in (found.sent, found.counted))
    algbw = 4 * elements / median
    return Row(
        seconds=tuple(found.seconds),
        calls=found.calls,
        milliseconds=1e3 * median,
        algbw=algbw,
        busbw=algbw * 2 * (shape.ranks - 1) / shape.ranks,
        payload=payload,
        wire=counted if sent is None else sent,
        wire_from="interface" if sent is not None else "meters" if counted is not None else None,
        counted=counted,
        of_bound=interval([payload / link / one for one in found.seconds]) if link and payload else None,
        over_backend=_over(backend, measured, found),
        over_exchange=_over(each.exchange, measured, found),
        error=max(found.errors) if each.reduces else None,
        allowed=limit(each, elements) if each.reduces else None,
        same_bits=found.same_bits if each.reduces else None,
    )


def faults(table: Mapping[str, Row]) -> list[str]:
    """What is wrong with the results, a line each; empty where all are right."""
    found = []
    for name, row in table.items():
        if row.same_bits is False:
            found.append(f"{name}: ranks hold different bits")
        if row.error is not None and row.allowed is not None and not row.error <= row.allowed:
            expected = "the exact mean" if row.allowed == 0 else f"at most {row.allowed:.3g}"
            found.append(f"{name}: relative error {row.error:.3g}; expected {expected}")
    return found


def _over(other: str, measured: Mapping[str, Measured], found: Measured) -> Interval | None:
    return compare(measured[other].seconds, found.seconds) if other in measured else None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
