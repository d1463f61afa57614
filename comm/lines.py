"""All lines of an axis at once, and what a round moves on them: the arrays behind the simulated fabric."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradwire.comm.pieces import bounds
from gradwire.comm.rounds import Indices, Round, waves
from gradwire.comm.topology import Topology


def ranks_of(topology: Topology, axis: str) -> Indices:
    """The ranks of every line along `axis`, [lines, size of the axis]: `Topology.lines` as an array."""
    stride, size = topology.stride(axis), topology.axes[axis]
    return np.arange(topology.size).reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size)


@dataclass(frozen=True, eq=False)
class Transfers:
    """What a round moves on all lines; transfers of nothing are left out.

    Args:
        sources: Ranks, int64 [M].
        targets: Ranks, int64 [M].
        forwards: Whether the target lies onwards along the line, by the shorter way, bool [M].
        lows: First element of the range that the line works on, [M].
        totals: Length of that range, [M].
        firsts: First element of the transfer, counted from there, [M].
        lengths: Elements, wrapping around at the end of the range, [M].
    """

    sources: Indices
    targets: Indices
    forwards: Indices
    lows: Indices
    totals: Indices
    firsts: Indices
    lengths: Indices

    def apply(self, data: Tensor, add: bool) -> None:
        """Move the elements on data [P, n], which is contiguous: what is sent is what was held before."""
        flat, arriving = data.view(-1), []
        for wave in waves(self.targets):
            sources, targets = self._places(wave, data.shape[1])
            arriving.append((targets, flat[sources]))
        for targets, values in arriving:
            flat[targets] = flat[targets] + values if add else values

    def _places(self, wave: Indices, width: int) -> tuple[Tensor, Tensor]:
        """Places in the flattened data that are read and written."""
        lengths, lows, totals = self.lengths[wave], self.lows[wave], self.totals[wave]
        firsts = self.firsts[wave]
        before = np.cumsum(lengths) - lengths
        elements = np.repeat(lows + firsts - before, lengths) + np.arange(int(lengths.sum()))
        if (firsts + lengths > totals).any():
            over = elements >= np.repeat(lows + totals, lengths)
            elements[over] -= np.repeat(totals, lengths)[over]
        sources, targets = (np.repeat(ranks[wave] * width, lengths) for ranks in (self.sources, self.targets))
        return torch.from_numpy(sources + elements), torch.from_numpy(targets + elements)


@dataclass(frozen=True, eq=False)
class Lines:
    """The lines of an axis, each with the range of elements that it works on.

    Args:
        ranks: By line and position, int64 [L, d].
        lows: First element of each line's range, int64 [L].
        ends: Where its chunks begin and end, counted from there, int64 [L, chunks + 1].
    """

    ranks: Indices
    lows: Indices
    ends: Indices

    @classmethod
    def cut(cls, ranks: Indices, lows: Indices, lengths: Indices, chunks: int, granule: int) -> "Lines":
        """Cut the lines' ranges into so many chunks."""
        return cls(ranks, lows, bounds(lengths, chunks, granule))

    def owned(self, pieces: int) -> tuple[Indices, Indices]:
        """First element and length of what each position owns after a reduce-scatter, [L, d] each."""
        ends = self.ends[:, ::pieces]
        return self.lows[:, None] + ends[:, :-1], np.diff(ends, axis=1)

    def transfers(self, turn: Round) -> Transfers:
        """The round on every line."""
        stops, chunks, totals = turn.starts + turn.counts, self.ends.shape[1] - 1, self.ends[:, -1:]
        firsts, beyond = self.ends[:, turn.starts], totals + self.ends[:, stops % chunks]
        lengths = np.where(stops <= chunks, self.ends[:, np.minimum(stops, chunks)], beyond) - firsts
        size = self.ranks.shape[1]
        forwards = ((turn.targets - turn.sources) % size <= size // 2)[None]
        sources, targets = self.ranks[:, turn.sources], self.ranks[:, turn.targets]
        columns = (sources, targets, forwards, self.lows[:, None], totals, firsts, lengths)
        return Transfers(*(np.broadcast_to(column, lengths.shape)[lengths > 0] for column in columns))
