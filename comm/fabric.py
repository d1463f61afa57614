"""An in-process fabric: any number of virtual ranks, real numerics, virtual time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from torch import Tensor

from gradwire.comm.algorithms.ring import Ring
from gradwire.comm.algorithms.tree import Tree
from gradwire.comm.errors import TopologyError
from gradwire.comm.lines import Lines, ranks_of
from gradwire.comm.links import CodecSpeed, Link
from gradwire.comm.pieces import bounds, cut
from gradwire.comm.program import Algorithms, Codecs, granule, rotations, taking_part
from gradwire.comm.simulation import Part, Run, Simulated, Where
from gradwire.comm.topology import Topology
from gradwire.comm.virtual import Clocks
from gradwire.comm.works import Op, check_op

TreeKind = Literal["broadcast", "reduce", "scatter", "gather"]


@dataclass(frozen=True, eq=False)
class Fabric:
    """Ranks joined by links that cost what they would, in one process.

    Args:
        topology: How the ranks are arranged.
        links: What joins them, by axis; axes of one rank need none.
        slow: Ranks that take so many times longer for what they send, encode and decode.
        lost: Ranks that fall silent, each with the phase and the round in it (counted from 0) from which on they are.
        speeds: How fast codecs work, by axis; free where not given.

    Raises:
        TopologyError: An axis without a link.
    """

    topology: Topology
    links: Mapping[str, Link]
    slow: Mapping[int, float] = field(default_factory=dict)
    lost: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    speeds: Mapping[str, CodecSpeed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for axis in taking_part(self.topology):
            if axis not in self.links:
                raise TopologyError(f"axis {axis} of {self.topology} has no link; found links for {list(self.links)}")

    def all_reduce(
        self,
        inputs: Tensor,
        algorithm: Algorithms | None = None,
        codecs: Codecs | None = None,
        op: Op = "sum",
        rotate: bool = False,
        seed: int = 0,
    ) -> Simulated:
        """Reduce `inputs` [P, n], one row a rank, with the additions of the real executor in its order.

        A rank's own value comes first, then what arrives in the order of the round. On an axis with a codec the owner
        of a chunk adds to its own float32 value what it decodes, in the order of positions. A mean is divided by its
        owner, before the all-gathers.

        Args:
            inputs: Any dtype; codecs see float32.
            algorithm: For all axes or by axis; rings where None.
            codecs: By axis.
            op: "sum" or "mean".
            rotate: Cut into k parts that take the axes in rotated order, all at once.
            seed: For codecs with random choices, as in `AllReduce`.

        Raises:
            CollectiveError: A lost rank kept another waiting; names axis, rank and round.
            CommError: Unknown op, or the mean of integers.
            TopologyError: Codecs or algorithms for an axis that does not exist.
        """
        check_op(op, inputs)
        codecs = codecs or {}
        programs = rotations(self.topology, algorithm or Ring(), codecs, rotate=rotate)
        run = self._run(inputs)
        ranges = cut(0, inputs.shape[1], len(programs), granule(codecs))
        parts = [Part(run, *reach, granule(codecs), seed << 20) for reach in ranges]
        for number in range(len(programs[0])):
            if 2 * number == len(programs[0]) and op == "mean":
                run.data.div_(self.topology.size)
            for part, program in zip(parts, programs, strict=True):
                part.play(program[number], number)
        if not programs[0] and op == "mean":
            run.data.div_(self.topology.size)
        return run.result([part.ready for part in parts], max(part.rounds for part in parts))

    def broadcast(self, inputs: Tensor, root: int = 0) -> Simulated:
        """Every rank's row becomes the root's, by binomial trees along the axes, outermost first."""
        return self._tree("broadcast", inputs, root)

    def reduce(self, inputs: Tensor, root: int = 0) -> Simulated:
        """The root's row becomes the sum of all rows, by the broadcast backwards; others hold partial sums."""
        return self._tree("reduce", inputs, root)

    def scatter(self, inputs: Tensor, root: int = 0) -> Simulated:
        """Rank r gets piece r of the root's row (`cut(0, n, P)`), in its place; outermost axis first."""
        return self._tree("scatter", inputs, root)

    def gather(self, inputs: Tensor, root: int = 0) -> Simulated:
        """The root gets piece r of rank r's row for every r: the scatter backwards."""
        return self._tree("gather", inputs, root)

    def _run(self, inputs: Tensor) -> Run:
        slowness = np.ones(self.topology.size)
        slowness[list(self.slow)] = list(self.slow.values())
        return Run(self.topology, Clocks(self.links, self.speeds, slowness), self.lost, inputs)

    def _tree(self, kind: TreeKind, inputs: Tensor, root: int) -> Simulated:
        run, tree = self._run(inputs), Tree()
        at, ready, rounds = self.topology.coordinates(root), np.zeros(len(inputs)), 0
        backwards = kind in ("reduce", "gather")
        axes = taking_part(self.topology) if backwards else taking_part(self.topology)[::-1]
        for number, axis in enumerate(axes):
            lines, size = self._tree_lines(kind, inputs.shape[1], axis, at), self.topology.axes[axis]
            for index in range(tree.rounds(size)):
                where = Where(axis, kind, number, index, tree.rounds(size))
                moves = lines.transfers(getattr(tree, kind)(size, at[axis], index))
                rounds += run.sends(where, moves)
                moves.apply(run.data, add=kind == "reduce")
                ready = run.clocks.exchange(ready, axis, moves, moves.lengths * inputs.itemsize)
        return run.result([ready], rounds)

    def _tree_lines(self, kind: TreeKind, count: int, axis: str, at: Mapping[str, int]) -> Lines:
        """The lines that hold something: at the root's position along all axes further inside."""
        stride, ranks = self.topology.stride(axis), ranks_of(self.topology, axis)
        inside = sum(at[name] * self.topology.stride(name) for name in self.topology.axes if name != axis)
        ranks = ranks[ranks[:, 0] % stride == inside % stride]
        if kind in ("broadcast", "reduce"):
            whole = np.full(len(ranks), count)
            return Lines.cut(ranks, np.zeros_like(whole), whole, 1, 1)
        ends = bounds(np.array([count]), self.topology.size)[0]
        edges = ends[ranks[:, :1] - inside % stride + stride * np.arange(ranks.shape[1] + 1)]
        return Lines(ranks, edges[:, 0], edges - edges[:, :1])
