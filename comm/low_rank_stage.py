"""The stage of an axis that is reduced in low rank: what a rank holds is summed in place, without scattering it."""

import time

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.power_sgd import LowRank, PowerSGD
from gradwire.comm.segment import Segment
from gradwire.comm.telemetry import Meter, energy
from gradwire.comm.transport import Exchange, Line


class LowRankStage:
    """PowerSGD along the last axis. Rows that do not lie wholly in what this rank holds are summed as they are.

    Args:
        line: The ranks along the axis; they hold the same part of the segment.
        depth: Which of the segment's portions is summed.
        config: What to do.
    """

    rounds = 1

    def __init__(self, line: Line, depth: int, config: PowerSGD) -> None:
        self.name = f"all-reduce {line.axis}"
        self.line = line
        self.meter = Meter(line.axis)
        self._depth = depth
        self._cold = LowRank(config)  # where the caller keeps no factors

    def expect(self, segment: Segment, tag: int) -> None:
        """Nothing: see `start`."""

    def start(self, segment: Segment, tag: int) -> None:
        """Nothing can be sent before the segment's turn: its sums use the line's collectives, in order."""

    def finish(self, segment: Segment, tag: int) -> None:
        portion = segment.portions[self._depth]
        if portion.stop == portion.start:
            return
        begun, waited = time.perf_counter(), self.meter.waiting
        elements = segment.elements(portion.start, portion.stop)
        self.meter.uncompressed += 2 * elements.nbytes * (self.line.size - 1) // self.line.size
        values = elements
        if elements.dtype != torch.float32:
            values = segment.take(f"{self.name} values", elements.numel(), torch.float32).copy_(elements)
        self._reduce(segment, values)
        if values is not elements:
            elements.copy_(values)
        self.meter.encoding += time.perf_counter() - begun - (self.meter.waiting - waited)

    def _reduce(self, segment: Segment, values: Tensor) -> None:
        portion, residual = segment.portions[self._depth], segment.residuals.get(self.line.axis)
        error = residual.pending if residual is not None else None
        if residual is not None:
            values.add_(residual.kept)
        elif segment.measured:
            error = segment.take(f"{self.name} error", values.numel(), torch.float32)
        encoded = energy(values) if segment.measured else None
        found = (rows.within(portion.start, portion.stop) for rows in segment.matrices)
        layout = [rows for rows in found if rows is not None]
        low_rank = residual.low_rank if residual is not None and residual.low_rank is not None else self._cold
        low_rank.reduce(values, layout, self._sum, error)
        self._cold.settle(kept=False)
        if encoded is not None and error is not None:
            self.meter.errors.append((energy(error), encoded))

    def _sum(self, values: Tensor) -> None:
        peer = (self.line.position + 1) % self.line.size
        exchange = Exchange(self.line, "the all-reduce of factors (power_sgd)")
        with exchange.named(peer):
            work = dist.all_reduce(values, group=self.line.group, async_op=True)
        assert work is not None
        exchange.receives.append((peer, work))
        for _ in self.meter.timed_arrivals(exchange):
            pass
        self.meter.sent += 2 * values.nbytes * (self.line.size - 1) // self.line.size
