"""Measured constants of the cost model: what the links of each axis carry, and how fast codecs work meanwhile."""

import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.codecs.codec import Codec
from gradwire.comm.group import gather_rows, initialized, timeout_of
from gradwire.comm.links import FREE, CodecSpeed, Link
from gradwire.comm.staged import join_lines
from gradwire.comm.topology import Topology
from gradwire.comm.transport import Line

_SMALL = 256  # bytes, of which the latency is measured
_LARGE = tuple(4**power for power in range(8, 14))  # 64 KiB to 64 MiB; as far as the time allows
_LONG = 0.08  # seconds: a message that takes longer tells the bandwidth well enough
_REPEATS = 5
_CODEC_ELEMENTS = 1 << 19


def measure(
    topology: Topology, group: dist.ProcessGroup | None = None, device: torch.device | None = None
) -> dict[str, Link]:
    """What every axis of more than one rank carries, the same numbers on every rank. A collective, of about a second.

    All ranks exchange with their neighbors along an axis at the same time, so that a link which several ranks share
    shows each rank's share. A message counts as long as the slowest rank's took.

    Args:
        topology: The axes.
        group: The ranks; all where None.
        device: Of the messages.

    Raises:
        TopologyError: The topology is of another size.
        CollectiveError: A peer died or did not answer in time.
    """
    if not initialized():
        return {}
    parent = group or dist.group.WORLD
    assert parent is not None
    topology.check(dist.get_world_size(parent))
    if topology.size == 1:
        return {}
    device = device or torch.device("cpu")
    lines = join_lines(topology, group, timeout_of(parent, device) or timedelta(minutes=30), device)
    try:
        return {axis: _measure_line(line, group, device) for axis, line in lines.items()}
    finally:
        gather_rows(torch.zeros(1), group)  # nobody leaves while another still waits for a message
        for line in lines.values():
            line.close()
            dist.destroy_process_group(line.group)


def codec_speed(codec: Codec, device: torch.device | None = None, group: dist.ProcessGroup | None = None) -> CodecSpeed:
    """How fast the codec works while every rank works at it; the slowest rank's. A collective, of about 0.1 s."""
    device = device or torch.device("cpu")
    if codec.name == "none":
        return FREE
    values = torch.randn(_CODEC_ELEMENTS, generator=torch.Generator().manual_seed(0)).to(device)
    payload = torch.empty(codec.nbytes(values.numel()), dtype=torch.uint8, device=device)
    error, out = torch.empty_like(values), torch.zeros_like(values)
    encode = slowest(lambda: codec.encode(values, payload, error=error), device, group, _REPEATS)
    decode = slowest(lambda: codec.decode_add(payload, out), device, group, _REPEATS)
    return CodecSpeed(values.nbytes / encode, values.nbytes / decode)


def slowest(action: Callable[[], object], device: torch.device, group: dist.ProcessGroup | None, times: int) -> float:
    """Median seconds, of so many times, that the slowest rank takes; the same number on every rank. A collective."""
    action()
    return statistics.median(slowest_once(action, device, group) for _ in range(times))


def slowest_once(action: Callable[[], object], device: torch.device, group: dist.ProcessGroup | None) -> float:
    """Seconds that the slowest rank takes, all beginning at the same time. A collective."""
    gather_rows(torch.zeros(1), group)
    _synchronize(device)
    begun = time.perf_counter()
    action()
    _synchronize(device)
    took = time.perf_counter() - begun
    return float(gather_rows(torch.tensor([took], dtype=torch.float64), group).max())


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measure_line(line: Line, group: dist.ProcessGroup | None, device: torch.device) -> Link:
    latency = _seconds(line, _SMALL, group, device, 4 * _REPEATS)
    points: list[tuple[int, float]] = []
    for nbytes in _LARGE:
        points.append((nbytes, _seconds(line, nbytes, group, device, _REPEATS)))
        if points[-1][1] > _LONG:
            break
    return Link(_bandwidth(points, latency), latency)


def _seconds(line: Line, nbytes: int, group: dist.ProcessGroup | None, device: torch.device, times: int) -> float:
    """Of a message to the next rank while one comes from the rank before."""
    outgoing, incoming = (torch.zeros(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    return slowest(lambda: _shift(line, outgoing, incoming), device, group, times)


def _shift(line: Line, outgoing: Tensor, incoming: Tensor) -> None:
    following, before = (line.position + 1) % line.size, (line.position - 1) % line.size
    exchange = line.post([(following, outgoing)], [(before, incoming)], 0, "the measurement")
    for _ in exchange.arrivals():
        pass
    exchange.sent()


def _bandwidth(points: Sequence[tuple[int, float]], latency: float) -> float:
    """From the two largest messages, so that what takes the same time for both (and what a queue lets pass) drops out.

    Where noise spoils that, what the largest alone says.
    """
    large, late = points[-1]
    alone = large / max(late - latency, late / 2)
    if len(points) == 1:
        return alone
    small, early = points[-2]
    slope = (large - small) / (late - early) if late > early else alone
    return slope if alone / 2 < slope < 2 * alone else alone
