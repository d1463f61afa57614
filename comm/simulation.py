"""A simulated collective under way: the data of all ranks at once, and their clocks."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradwire.comm.codecs.codec import Codec
from gradwire.comm.errors import CollectiveError, TopologyError
from gradwire.comm.lines import Lines, Transfers, ranks_of
from gradwire.comm.program import Phase, encode_seed
from gradwire.comm.rounds import Indices, Round
from gradwire.comm.topology import Topology
from gradwire.comm.virtual import Clocks, Seconds


@dataclass(frozen=True, eq=False)
class Simulated:
    """What a simulated collective left behind.

    Attributes:
        outputs: What each rank holds, [P, n].
        seconds: When the last rank was done.
        done: When each rank was, float64 [P].
        rounds: Rounds in which something was sent, one after the other.
        bytes: Sent by each rank, by axis, int64 [P] each.
    """

    outputs: Tensor
    seconds: float
    done: Seconds
    rounds: int
    bytes: Mapping[str, Indices]


@dataclass(frozen=True)
class Where:
    """A round, as errors name it."""

    axis: str
    kind: str
    phase: int
    index: int
    rounds: int

    def __str__(self) -> str:
        return f"round {self.index + 1} of {self.rounds} of the {self.kind.replace('_', '-')} along {self.axis}"


class Run:
    """One simulated collective: the data, and the clocks."""

    def __init__(self, topology: Topology, clocks: Clocks, lost: Mapping[int, tuple[int, int]], inputs: Tensor) -> None:
        if inputs.dim() != 2 or len(inputs) != topology.size:
            raise TopologyError(f"{topology} takes [{topology.size}, n] inputs; found {list(inputs.shape)}")
        self.topology, self.clocks, self.lost = topology, clocks, lost
        self.data = inputs.detach().clone(memory_format=torch.contiguous_format)

    def sends(self, where: Where, moves: Transfers) -> int:
        """1 where the round sends anything.

        Raises:
            CollectiveError: One of its ranks is lost.
        """
        for rank, since in self.lost.items():
            waiting = np.concatenate([moves.targets[moves.sources == rank], moves.sources[moves.targets == rank]])
            if len(waiting) and (where.phase, where.index) >= since:
                raise CollectiveError(f"{where} failed on rank {waiting[0]}: rank {rank} does not answer (it is lost)")
        return int(len(moves.lengths) > 0)

    def result(self, ready: list[Seconds], rounds: int) -> Simulated:
        done = np.max(ready, axis=0)
        return Simulated(self.data, float(done.max()), done, rounds, self.clocks.sent)


class Part:
    """A range of elements on its way through its phases, on all ranks at once."""

    def __init__(self, run: Run, start: int, stop: int, granule: int, seed: int) -> None:
        ranks = len(run.data)
        self.ready, self.rounds = np.zeros(ranks), 0
        self._run, self._granule, self._seed = run, granule, seed
        self._lows, self._lengths = np.full(ranks, start), np.full(ranks, stop - start)
        self._scattered: list[Lines] = []  # how the axes reduced so far were cut

    def play(self, phase: Phase, number: int) -> None:
        """Go through a phase, the `number`-th."""
        if phase.adds:
            ranks = ranks_of(self._run.topology, phase.axis)
            first, chunks = ranks[:, 0], ranks.shape[1] * phase.algorithm.pieces
            lines = Lines.cut(ranks, self._lows[first], self._lengths[first], chunks, self._granule)
            self._scattered.append(lines)
            self._lows[ranks], self._lengths[ranks] = lines.owned(phase.algorithm.pieces)
        else:
            lines = self._scattered.pop()
        size = lines.ranks.shape[1]
        for index in range(phase.algorithm.rounds(size)):
            where = Where(phase.axis, phase.kind, number, index, phase.algorithm.rounds(size))
            self._round(lines, phase, where, phase.round(size, index))

    def _round(self, lines: Lines, phase: Phase, where: Where, turn: Round) -> None:
        moves, clocks, data = lines.transfers(turn), self._run.clocks, self._run.data
        self.rounds += self._run.sends(where, moves)
        if phase.codec is None:
            moves.apply(data, turn.add)
            self.ready = clocks.exchange(self.ready, phase.axis, moves, moves.lengths * data.itemsize)
            return
        nbytes = np.array([phase.codec.nbytes(count) for count in moves.lengths.tolist()], dtype=np.int64)
        encoded, decoded = _codec_work(moves, turn.add, len(data))
        self._recode(lines, phase.codec, turn.add)
        self.ready = clocks.encode(self.ready, phase.axis, encoded)
        self.ready = clocks.exchange(self.ready, phase.axis, moves, nbytes)
        self.ready = clocks.decode(self.ready, phase.axis, decoded)

    def _recode(self, lines: Lines, codec: Codec, add: bool) -> None:
        """Both shots of the two-shot: each owner gathers its chunk from the encoded parts, or hands it out encoded."""
        lows, lengths = lines.owned(1)
        for line, ranks in enumerate(lines.ranks.tolist()):
            for owner, low, length in zip(ranks, lows[line].tolist(), lengths[line].tolist(), strict=True):
                if length:
                    (self._collect if add else self._hand_out)(slice(low, low + length), codec, ranks, owner)

    def _collect(self, chunk: slice, codec: Codec, ranks: list[int], owner: int) -> None:
        data = self._run.data[:, chunk]
        total = data[owner].to(torch.float32, copy=True)
        for position, rank in enumerate(ranks):
            if rank != owner:
                seed = encode_seed(codec, self._seed, chunk.start, position, adds=True)
                codec.decode_add(_encoded(codec, data[rank], seed), total)
        data[owner] = total.to(data.dtype)

    def _hand_out(self, chunk: slice, codec: Codec, ranks: list[int], owner: int) -> None:
        data = self._run.data[:, chunk]
        out = torch.empty(data.shape[1], dtype=torch.float32)
        seed = encode_seed(codec, self._seed, chunk.start, ranks.index(owner), adds=False)
        codec.decode(_encoded(codec, data[owner], seed), out)
        data[ranks] = out.to(data.dtype)


def _encoded(codec: Codec, values: Tensor, seed: int) -> Tensor:
    payload = torch.empty(codec.nbytes(len(values)), dtype=torch.uint8)
    codec.encode(values.to(torch.float32).contiguous(), payload, seed=seed)
    return payload


def _codec_work(moves: Transfers, add: bool, ranks: int) -> tuple[Indices, Indices]:
    """Elements that each rank encodes and decodes, [P] each: what is handed out is encoded once and decoded by all."""
    sent, received = (
        np.bincount(side, moves.lengths, ranks).astype(np.int64) for side in (moves.sources, moves.targets)
    )
    if add:
        return sent, received
    own = np.zeros(ranks, dtype=np.int64)
    own[moves.sources] = moves.lengths
    return own, received + own
