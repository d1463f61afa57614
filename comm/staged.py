"""The project's own all-reduce: reduce-scatter along every axis and all-gather back, in segments that overlap."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.codecs.codec import Codec
from gradwire.comm.coded_stages import CodedAllGather, CodedReduceScatter
from gradwire.comm.compression import Compression
from gradwire.comm.errors import CommError
from gradwire.comm.factors import Rows
from gradwire.comm.farewell import Farewell
from gradwire.comm.group import give_up, named
from gradwire.comm.lane import Lane
from gradwire.comm.layout import Portion, Range, Step, portions, segments
from gradwire.comm.low_rank_stage import LowRankStage
from gradwire.comm.neighbors import find
from gradwire.comm.pieces import cut
from gradwire.comm.power_sgd import PowerSGD
from gradwire.comm.program import granule
from gradwire.comm.recording import Kept, Record, piece
from gradwire.comm.rounds import Algorithm
from gradwire.comm.segment import Job, Residual, Segment
from gradwire.comm.stages import NativeStage, RoundsStage, Stage
from gradwire.comm.telemetry import Meter
from gradwire.comm.topology import Topology
from gradwire.comm.transport import Line


class Staged:
    """An all-reduce over the axes of a topology, compressed where an axis has a codec.

    Creating one is a collective over the group.

    Args:
        topology: The axes, fastest links first.
        algorithm: Rounds along axes without codec; on NCCL None lets the backend do these.
        codecs: By axis; PowerSGD on the last one only, and not with `rotate`.
        group: The ranks, as many as the topology has.
        device: Of the tensors.
        segment_bytes: Tensors are cut into segments of at most this size, of which several are under way at a time.
        rotate: Whether segments take the axes in turned orders, so that the links of all axes work at once.
        timeout: How long a peer may keep this rank waiting.
    """

    def __init__(
        self,
        topology: Topology,
        algorithm: Algorithm | None,
        codecs: Mapping[str, Compression],
        group: dist.ProcessGroup | None,
        device: torch.device,
        segment_bytes: int,
        rotate: bool,
        timeout: timedelta,
    ) -> None:
        self.topology = topology
        self.codecs = dict(codecs)
        self._algorithm = algorithm
        self._segment_bytes = segment_bytes
        self._granule = granule({axis: codec for axis, codec in codecs.items() if isinstance(codec, Codec)})
        self._low_rank = {axis: codec for axis, codec in codecs.items() if isinstance(codec, PowerSGD)}
        self._sequence = 0
        self._plans: dict[tuple[int, int], list[tuple[int, tuple[Portion, ...]]]] = {}
        self._lines = join_lines(topology, group, timeout, device)
        self._steps = {axis: self._step(line) for axis, line in self._lines.items()}
        axes = list(self._lines)
        self._orders = [axes[turn:] + axes[:turn] for turn in range(len(axes) if rotate else 1)]
        self._lanes = [self._lane(order, device) for order in self._orders]

    def __call__(
        self,
        flat: Tensor,
        divisor: int,
        seed: int,
        residuals: Mapping[str, Residual],
        update: int = 0,
        matrices: Sequence[Rows] = (),
        record: Record | None = None,
    ) -> Job:
        """Begin to sum a one-dimensional contiguous tensor over the ranks, in place.

        Args:
            flat: The tensor; untouched by others until the job is done.
            divisor: By which the sum is divided.
            seed: For the random choices of codecs and of the segment whose errors are measured; the same on every rank.
            residuals: By axis, of the length that `residual_ranges` adds up to.
            update: For codecs that change in the course of a run: which update this is, counted from 0.
            matrices: Rows of matrices in the tensor, for the axis that is reduced in low rank.
            record: Where this rank's share of what the result follows from is kept.
        """
        plan = self._plan(flat.numel(), flat.itemsize)
        job = Job(len(plan))
        kept = [None] * len(plan) if record is None else self._begin(record, flat, update)
        begins = dict.fromkeys(self.codecs, 0)
        batches: list[list[Segment]] = [[] for _ in self._lanes]
        for place, (turn, held) in enumerate(plan):
            mine: dict[str, Residual] = {}
            for axis, portion in zip(self._orders[turn], held, strict=True):
                if axis in residuals:
                    length = portion.stop - portion.start
                    mine[axis] = residuals[axis].part(begins[axis], begins[axis] + length)
                    begins[axis] += length
            segment = Segment(
                flat,
                held,
                self._sequence,
                seed << _SEED_BITS,
                divisor,
                job,
                mine,
                seed % len(plan) == place,
                update,
                tuple(matrices),
                kept[place],
            )
            batches[turn].append(segment)
            self._sequence += 1
        for lane, batch in zip(self._lanes, batches, strict=True):
            lane.submit(batch)
        return job

    def _begin(self, record: Record, flat: Tensor, update: int) -> list[Kept | None]:
        codecs = {axis: codec.at(update) for axis, codec in self.codecs.items() if isinstance(codec, Codec)}
        pieces = [
            piece(
                place // len(self._orders),
                held,
                [self._lines[axis] for axis in self._orders[turn]],
                [codecs.get(axis) for axis in self._orders[turn]],
                record.raw,
            )
            for place, (turn, held) in enumerate(self._plan(flat.numel(), flat.itemsize))
        ]
        return record.begin(pieces, flat)

    def residual_ranges(self, axis: str, count: int, itemsize: int) -> list[Range]:
        """The elements of a tensor of `count` that this rank encodes along `axis`, in the order of its residual."""
        return [(held.start, held.stop) for _, held in self._portions(axis, count, itemsize)]

    def owned_ranges(self, axis: str, count: int, itemsize: int) -> list[Range]:
        """Those among them that are this rank's when the ranks that encode along `axis` share the tensor out."""
        line = self._lines.get(axis)
        return [
            cut(held.start, held.stop, line.size)[line.position] if axis in self._low_rank and line else held.own
            for later, held in self._portions(axis, count, itemsize)
            if self._is_first(later)
        ]

    def _is_first(self, axes: Sequence[str]) -> bool:
        """Whether this rank answers for all along `axes`, who hold the same once these are reduced."""
        return all(self._lines[axis].position == 0 for axis in axes)

    def _portions(self, axis: str, count: int, itemsize: int) -> Iterator[tuple[list[str], Portion]]:
        """For every segment: the axes that come after `axis`, and what this rank holds before it."""
        for turn, held in self._plan(count, itemsize):
            order = self._orders[turn]
            if axis in order:
                depth = order.index(axis)
                yield order[depth + 1 :], held[depth]

    @property
    def meters(self) -> list[Meter]:
        """One for every stage."""
        return [stage.meter for lane in self._lanes for stage in lane.stages]

    def recode(self, axis: str, codec: Codec) -> None:
        """Another codec on an axis that has one; segments stay as they are. No reduction may be under way."""
        if axis not in self.codecs:
            return
        self.codecs[axis] = codec
        for stage in (stage for lane in self._lanes for stage in lane.stages):
            if isinstance(stage, CodedReduceScatter | CodedAllGather) and stage.line.axis == axis:
                stage.codec = codec

    def close(self) -> None:
        """End the threads."""
        for lane in self._lanes:
            lane.close()

    def leave(self) -> None:
        """End the threads and the groups of ranks along the axes. A collective; nothing may be under way."""
        self.close()
        for line in self._lines.values():
            line.close()
            give_up(line.group)
        self._lines.clear()  # a group's threads end with the last object that holds it
        self._lanes.clear()

    def _step(self, line: Line) -> Step:
        if line.axis in self._low_rank:
            return Step(size=1, position=0)
        pieces = 1 if line.axis in self.codecs or self._algorithm is None else self._algorithm.pieces
        return Step(line.size, line.position, pieces)

    def _lane(self, order: Sequence[str], device: torch.device) -> Lane:
        scattered = [(depth, axis) for depth, axis in enumerate(order) if axis not in self._low_rank]
        stages: list[Stage] = []
        for depth, axis in scattered:
            stages += self._stages(axis, depth, "reduce-scatter", order)
        stages += [
            LowRankStage(self._lines[axis], depth, self._low_rank[axis])
            for depth, axis in enumerate(order)
            if axis in self._low_rank
        ]
        for depth, axis in reversed(scattered):
            stages += self._stages(axis, depth, "all-gather", order)
        offsets = [sum(stage.rounds for stage in stages[:place]) for place in range(len(stages))]
        return Lane(stages, offsets, sum(stage.rounds for stage in stages), device)

    def _stages(self, axis: str, depth: int, kind: str, order: Sequence[str]) -> list[Stage]:
        """The phase of one kind along an axis: a round for each stage, or several where there are many."""
        line, codec = self._lines[axis], self.codecs.get(axis)
        if isinstance(codec, Codec) and kind == "reduce-scatter":
            return [CodedReduceScatter(line, depth, codec)]
        if isinstance(codec, Codec):
            return [CodedAllGather(line, depth, codec, self._is_first(order[depth + 1 :]))]
        if self._algorithm is None:
            return [NativeStage(line, depth, kind)]
        rounds = self._algorithm.rounds(line.size)
        return [
            RoundsStage(line, depth, self._algorithm, kind, range(start, stop))
            for start, stop in cut(0, rounds, min(rounds, _MOST_STAGES))
        ]

    def _plan(self, count: int, itemsize: int) -> list[tuple[int, tuple[Portion, ...]]]:
        """Every segment's lane and portions."""
        if (count, itemsize) not in self._plans:
            most = max(self._segment_bytes // itemsize, self._granule)
            if self._low_rank:  # a cut would go through matrices
                most = max(count, self._granule)
            ranges = segments(count, most, self._granule, least=len(self._orders))
            self._plans[count, itemsize] = [
                (
                    place % len(self._orders),
                    portions(
                        start,
                        stop,
                        [self._steps[axis] for axis in self._orders[place % len(self._orders)]],
                        self._granule,
                    ),
                )
                for place, (start, stop) in enumerate(ranges)
            ]
        return self._plans[count, itemsize]


_MOST_STAGES = 4  # of a phase: more let more segments be under way, and take threads and memory
_SEED_BITS = 34  # below them, codecs tell positions within a tensor apart


def join_lines(
    topology: Topology, group: dist.ProcessGroup | None, timeout: timedelta, device: torch.device
) -> dict[str, Line]:
    """This rank's line along every axis that has more than one position. A collective."""
    parent = group or dist.group.WORLD
    assert parent is not None
    ranks, mine = dist.get_process_group_ranks(parent), dist.get_rank(parent)
    everyone = len(ranks) == dist.get_world_size()
    lines: dict[str, Line] = {}
    for axis, size in topology.axes.items():
        if size == 1:
            continue
        for members in topology.lines(axis) if everyone else [topology.line(mine, axis)]:
            with named(f"creating the group of ranks along {axis}", parent):
                created = dist.new_group(
                    [ranks[member] for member in members], timeout=timeout, use_local_synchronization=not everyone
                )
            if mine in members:
                assert isinstance(created, dist.ProcessGroup)
                place = list(members).index(mine)
                on_streams = device.type == "cuda"
                farewell = None if on_streams else Farewell(created, place, size)
                neighbors = None if on_streams else find(created, axis, timeout.total_seconds())
                lines[axis] = Line(
                    axis, tuple(members), place, created, timeout, on_streams, farewell, neighbors=neighbors
                )
    if not lines:
        raise CommError(f"{topology} has a single rank: there is nothing to reduce")
    return lines
