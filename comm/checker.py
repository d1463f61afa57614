"""Proof that rounds do what they should, by following every rank's contribution to every chunk."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradwire.comm.algorithms.tree import Tree
from gradwire.comm.errors import ProgramError
from gradwire.comm.program import Phase, taking_part
from gradwire.comm.rounds import Algorithm, Indices, Round, waves
from gradwire.comm.topology import Topology


def check(topology: Topology, program: Sequence[Phase]) -> None:
    """Prove that a program leaves the sum over all ranks on every rank.

    Every phase is proven on a line of its axis; that axes are taken one inside the other carries it to the whole: after
    a reduce-scatter along an axis the ranks of a line hold complete sums over the line of disjoint ranges.

    Raises:
        ProgramError: Names what is wrong, and the round, rank and chunk where it is.
    """
    reduced: list[Phase] = []
    open_phases: list[Phase] = []
    for number, phase in enumerate(program):
        if phase.axis not in topology.axes:
            raise ProgramError(f"phase {number} goes along axis {phase.axis!r}, which {topology} does not have")
        if phase.adds:
            if any(phase.axis == earlier.axis for earlier in reduced):
                raise ProgramError(f"phase {number} reduces along {phase.axis} again: ranks would be counted twice")
            reduced.append(phase)
            open_phases.append(phase)
        elif not open_phases or (open_phases[-1].axis, open_phases[-1].algorithm) != (phase.axis, phase.algorithm):
            raise ProgramError(f"phase {number} gathers along {phase.axis}, but that was not the last axis scattered")
        else:
            open_phases.pop()
    missing = set(taking_part(topology)) - {phase.axis for phase in reduced}
    if missing or open_phases:
        what, axes = ("reduce", sorted(missing)) if missing else ("gather", [phase.axis for phase in open_phases])
        raise ProgramError(f"the program does not {what} along {', '.join(axes)}")
    for algorithm, ranks in {(phase.algorithm, topology.axes[phase.axis]) for phase in reduced}:
        check_line(algorithm, ranks)


def check_line(algorithm: Algorithm, ranks: int) -> None:
    """Prove an algorithm's reduce-scatter and all-gather over a line of `ranks` positions.

    Raises:
        ProgramError: A chunk is not reduced exactly once from every rank or not delivered everywhere, or something is
            sent before it is held, received while it is sent, or goes to nobody.
    """
    chunks = ranks * algorithm.pieces
    owners = np.arange(chunks) // algorithm.pieces
    held = _Contributions(ranks, chunks)
    held.everyone_has_its_own()
    count = algorithm.rounds(ranks)
    held.play("reduce_scatter", (algorithm.reduce_scatter(ranks, index) for index in range(count)))
    held.expect_complete("reduce_scatter", owners, np.arange(chunks))
    held.only(owners, np.arange(chunks))
    held.play("all_gather", (algorithm.all_gather(ranks, index) for index in range(count)))
    held.expect_complete("all_gather", np.repeat(np.arange(ranks), chunks), np.tile(np.arange(chunks), ranks))


def check_tree(kind: Literal["broadcast", "reduce", "scatter", "gather"], tree: Tree, ranks: int, root: int) -> None:
    """Prove a tree collective over a line of `ranks` positions.

    Raises:
        ProgramError: As in `check_line`.
    """
    chunks = 1 if kind in ("broadcast", "reduce") else ranks
    held = _Contributions(ranks, chunks)
    everywhere, each, at_root = np.arange(ranks), np.arange(chunks), np.full(chunks, root)
    if kind == "reduce":
        held.everyone_has_its_own()
    else:
        held.complete(*((each, each) if kind == "gather" else (at_root, each)))
    turn = getattr(tree, kind)
    held.play(kind, (turn(ranks, root, index) for index in range(tree.rounds(ranks))))
    targets = {"broadcast": (everywhere, np.zeros_like(everywhere)), "scatter": (each, each)}
    held.expect_complete(kind, *targets.get(kind, (at_root, each)))


class _Contributions:
    """Whose parts are in what each position holds of each chunk: bits [position, chunk, contributor / 8]."""

    def __init__(self, ranks: int, chunks: int) -> None:
        self._ranks, self._chunks = ranks, chunks
        self._full = np.packbits(np.ones(ranks, dtype=bool))
        self._bits = np.zeros((ranks, chunks, len(self._full)), dtype=np.uint8)

    def everyone_has_its_own(self) -> None:
        self._bits[:] = np.packbits(np.eye(self._ranks, dtype=bool), axis=1)[:, None]

    def complete(self, positions: Indices, chunks: Indices) -> None:
        self._bits[positions, chunks] = self._full

    def only(self, positions: Indices, chunks: Indices) -> None:
        """Forget everything but these complete chunks."""
        self._bits[:] = 0
        self.complete(positions, chunks)

    def expect_complete(self, kind: str, positions: Indices, chunks: Indices) -> None:
        whole = (self._bits[positions, chunks] == self._full).all(axis=1)
        if not whole.all():
            where = np.flatnonzero(~whole)[0]
            held = np.unpackbits(self._bits[positions[where], chunks[where]])[: self._ranks]
            raise ProgramError(
                f"after the {kind} chunk {chunks[where]} at rank {positions[where]} has the parts of "
                f"{np.flatnonzero(held).tolist()} of {self._ranks} ranks"
            )

    def play(self, kind: str, rounds: Iterable[Round]) -> None:
        for index, turn in enumerate(rounds):
            self._play(f"round {index} of the {kind}", turn)

    def _play(self, name: str, turn: Round) -> None:
        sources, targets, chunks = self._each_chunk(name, turn)
        sent, room = sources * self._chunks + chunks, targets * self._chunks + chunks
        _refuse(np.isin(room, sent), f"{name} receives at rank {{}} chunk {{}} while it sends it", targets, chunks)
        payload = self._bits[sources, chunks]
        _refuse(
            ~payload.any(axis=1), f"{name} sends from rank {{}} chunk {{}}, which it does not hold", sources, chunks
        )
        for wave in waves(room):
            self._receive(name, turn.add, targets[wave], chunks[wave], payload[wave])

    def _receive(self, name: str, add: bool, targets: Indices, chunks: Indices, payload: NDArray[np.uint8]) -> None:
        held = self._bits[targets, chunks]
        if add:
            twice = (held & payload).any(axis=1)
            _refuse(twice, f"{name} adds at rank {{}} to chunk {{}} what is in it already", targets, chunks)
            payload = held | payload
        else:
            lost = (held & ~payload).any(axis=1)
            _refuse(lost, f"{name} overwrites at rank {{}} in chunk {{}} what was not sent on", targets, chunks)
        self._bits[targets, chunks] = payload

    def _each_chunk(self, name: str, turn: Round) -> tuple[Indices, Indices, Indices]:
        """The round with one row for every chunk."""
        for what, values, limit in (
            ("source", turn.sources, self._ranks),
            ("target", turn.targets, self._ranks),
            ("first chunk", turn.starts, self._chunks),
            ("count less one", turn.counts - 1, self._chunks),
        ):
            outside = (values < 0) | (values >= limit)
            if outside.any():
                raise ProgramError(f"{name} has a {what} of {values[outside][0]}; expected 0 to {limit - 1}")
        alone = turn.sources == turn.targets
        _refuse(alone, f"{name} sends from rank {{}} chunk {{}} to itself", turn.sources, turn.starts)
        rows = np.repeat(np.arange(len(turn.counts)), turn.counts)
        steps = np.arange(len(rows)) - np.repeat(np.cumsum(turn.counts) - turn.counts, turn.counts)
        return turn.sources[rows], turn.targets[rows], (turn.starts[rows] + steps) % self._chunks


def _refuse(where: NDArray[np.bool_] | np.bool_, message: str, ranks: Indices, chunks: Indices) -> None:
    if where.any():
        first = np.flatnonzero(where)[0]
        raise ProgramError(message.format(ranks[first], chunks[first]))
