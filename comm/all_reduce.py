"""The all-reduce: one object that knows who takes part and how, called on tensors."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm import compressions
from gradwire.comm.automatic import Automatic
from gradwire.comm.choices import NATIVE, Choice, Way
from gradwire.comm.codecs import Codec
from gradwire.comm.compression import Compression
from gradwire.comm.engines import Engines
from gradwire.comm.errors import CodecError, CommError
from gradwire.comm.factors import Rows
from gradwire.comm.group import give_up, initialized, named, own_group, size_of
from gradwire.comm.recording import Piece, Record
from gradwire.comm.segment import Residual
from gradwire.comm.telemetry import Traffic, traffic
from gradwire.comm.topology import Topology
from gradwire.comm.works import DoneWork, NativeWork, Op, StagedWork, Work, check_op, has_fractions

AlgorithmName = Literal["native", "ring", "bidirectional_ring", "two_shot", "halving_doubling", "auto"]


class AllReduce:
    """Combines a tensor over ranks so that every rank holds the same bits.

    With "native" and no codec this is the backend's own all-reduce. Otherwise a tensor is cut into segments that flow
    through a reduce-scatter along every axis and an all-gather back, several at a time. On an axis with a codec two
    shots carry encoded values: everyone sends each owner its part, the owner sends what it added up to everyone.
    PowerSGD sums what a rank holds in low rank instead: a tensor is one segment then, so that its matrices stay whole.

    Args:
        topology: Axes of links, fastest first; must multiply to the number of ranks. One ring where None.
        algorithm: How the axes without codec are reduced; "native" leaves these to the backend where it does that well
            (NCCL) and takes two shots where it does not (gloo). With "auto" what is fastest for a size is measured when
            it first comes (see `tune`), the backend's own all-reduce among it; codecs are then used where they pay.
        codecs: What compresses an axis, by the axis's name: a codec, PowerSGD (the last axis only), or its name.
        group: Ranks that take part; all where None. Without a process group this process is alone and nothing is sent.
        segment_mb: Size of the segments, MiB; smaller ones overlap better and cost more processor time. Where None,
            about one on the wire, but at least 4 and at most 16. "auto" decides.
        rotate: Whether segments take the axes in turned orders, so that the links of all axes of a torus work at once.
            "auto" decides.
        timeout: Seconds that a peer may keep this rank waiting; the group's time-out where None.

    Raises:
        TopologyError: The topology is of another size, or has no axis that `codecs` names.
        CommError: Unknown algorithm or codec, PowerSGD where it cannot be, or a size or time that is not above 0.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        algorithm: AlgorithmName = "native",
        codecs: Mapping[str, Compression | str] | None = None,
        group: dist.ProcessGroup | None = None,
        segment_mb: float | None = None,
        rotate: bool = False,
        timeout: float | None = None,
    ) -> None:
        if algorithm not in get_args(AlgorithmName):
            raise CommError(f"algorithm is {algorithm!r}; expected one of {', '.join(get_args(AlgorithmName))}")
        for name, value in (("segment_mb", segment_mb), ("timeout", timeout)):
            if value is not None and not 0 < value < float("inf"):
                raise CommError(f"{name} is {value}; expected a number above 0")
        self.group = group
        self.algorithm: AlgorithmName = algorithm
        self.size = size_of(group)
        self.topology = topology or Topology(ring=self.size)
        self.topology.check(self.size)
        self.codecs = compressions.by_axis(self.topology, codecs or {})
        compressions.check_low_rank(
            self.topology, self.codecs, "auto" if algorithm == "auto" else "rotate" if rotate else None
        )
        self.segment_mb = compressions.segment_mb(self.codecs) if segment_mb is None else segment_mb
        self.rotate = rotate
        self.timeout = timeout
        self._calls = 0
        plain = {axis: codec for axis, codec in self.codecs.items() if isinstance(codec, Codec)}
        self._automatic = Automatic(self.topology, plain) if algorithm == "auto" else None
        self._engines = Engines(self.topology, self.codecs, group, timeout)
        self._owns_group = False

    def __call__(
        self,
        tensor: Tensor,
        op: Op = "mean",
        async_op: bool = False,
        *,
        seed: int | None = None,
        residuals: Mapping[str, Residual] | None = None,
        update: int | None = None,
        matrices: Sequence[Rows] | None = None,
        record: Record | None = None,
    ) -> Work | None:
        """Reduce `tensor` (dense, any shape, the same on every rank) in place.

        Ranks make these calls in the same order. "mean" is the sum divided by the number of ranks, rounded once.

        Args:
            tensor: What to reduce.
            op: How.
            async_op: Whether to return before it is done.
            seed: For codecs with random choices, the same on every rank; the number of calls so far where None.
            residuals: Error feedback by axis, each of as many elements as `residual_ranges` covers; with "sum" only.
            update: Which one of a run this is, counted from 0, for codecs that change; past their changes where None.
            matrices: Rows of matrices in the tensor, for PowerSGD; the tensor [first axis, all others] where None.
            record: Keeps this rank's share of what the result follows from.

        Returns:
            None; with `async_op` the work to wait for, before which the tensor must not be touched.

        Raises:
            CommError: Unknown op, the mean of integers, or residuals with "mean".
            CodecError: An axis has a codec, and the tensor no floating-point numbers.
            CollectiveError: A peer died or did not answer in time.
        """
        check_op(op, tensor)
        if residuals and op == "mean":
            raise CommError("residuals are in units of the reduced tensor: divide by the ranks first and use op='sum'")
        if not initialized() or self.size == 1:
            if record is not None:
                _keep(record, tensor.detach().contiguous())
            return DoneWork() if async_op else None
        self._calls += 1
        carried = _Carried(
            seed=self._calls if seed is None else seed,
            residuals=residuals or {},
            update=sys.maxsize if update is None else update,
            matrices=_whole(tensor) if matrices is None else matrices,
            record=record,
        )
        work = self._start(self._way(tensor), tensor, op, carried)
        if async_op:
            return work
        work.wait()
        return None

    def take_traffic(self) -> dict[str, Traffic]:
        """By axis, what the reductions since the last call cost this rank; empty for the backend's own all-reduce.

        No reduction may be under way.
        """
        return traffic(self._engines.meters)

    @property
    def is_native(self) -> bool:
        """Whether the backend's own all-reduce does it all."""
        return self.algorithm == "native" and not self.codecs

    @property
    def choices(self) -> list[Choice]:
        """What "auto" has decided so far, from small to large tensors."""
        return [] if self._automatic is None else self._automatic.choices

    def tune(self, sizes: Sequence[int], device: torch.device | None = None) -> list[Choice]:
        """With "auto": measure what is fastest for tensors of so many bytes, where that is not known. A collective.

        The first time links and codecs are measured too. Takes seconds; on slow links, tens of seconds for large sizes.

        Returns:
            The choices, one for each size; none without "auto".

        Raises:
            CollectiveError: A peer died or did not answer in time.
        """
        if self._automatic is None or not initialized() or self.size == 1:
            return []
        device, known = device or torch.device("cpu"), len(self.choices)
        chosen = [self._automatic.choice(nbytes, device, self.group, self._try) for nbytes in sizes]
        for choice in chosen:
            if not choice.way.native:
                self._engines.get(device, choice.way)
        self._engines.leave(but={choice.way for choice in self.choices})  # those that were only tried
        if len(self.choices) > known:
            self.take_traffic()  # that of trying
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """The choices of "auto", so that a resumed run repeats them."""
        return {} if self._automatic is None else self._automatic.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over choices instead of measuring; those with another algorithm than "auto" have none to take over.

        Raises:
            CommError: They were made on another topology or with other codecs.
        """
        if self._automatic is not None and state:
            self._automatic.load_state_dict(state)

    def private(self, device: torch.device) -> "AllReduce":
        """The same over a group of its own, whose calls need no order with anybody else's. A collective.

        Choices of "auto" are shared by both.
        """
        group = own_group(self.group, device) if initialized() and self.size > 1 else self.group
        own = AllReduce(self.topology, self.algorithm, self.codecs, group, self.segment_mb, self.rotate, self.timeout)
        own._automatic = self._automatic
        own._owns_group = group is not self.group
        if self.size > 1 and self._automatic is None and not self.is_native:
            own._engines.get(device, own._fixed_way)
        return own

    def close(self) -> None:
        """End the threads and process groups that were created for it. A collective; nothing may be under way.

        Worth a call where many are made: every group keeps a thread of its backend awake until the process ends.
        """
        self._engines.leave()
        if self._owns_group:
            assert self.group is not None
            self._owns_group = False
            give_up(self.group)

    def recode(self, axis: str, codec: Codec) -> None:
        """Use another codec on an axis that has one. Every rank does, between the same two reductions.

        Tensors are cut as before, so residuals stay where they are.

        Raises:
            CommError: The axis has no codec now.
        """
        if axis not in self.codecs:
            raise CommError(f"the axis {axis!r} has no codec that could be replaced; there are {list(self.codecs)}")
        self._engines.recode(axis, codec)

    def residual_ranges(self, axis: str, tensor: Tensor) -> list[tuple[int, int]]:
        """The elements of `tensor` that this rank encodes along `axis`, in the order in which a residual holds them."""
        way = self._way(tensor)
        if way.native or self.size == 1:
            return []
        engine = self._engines.get(tensor.device, way)
        return engine.residual_ranges(axis, tensor.numel(), tensor.itemsize) if axis in engine.codecs else []

    def owned_ranges(self, axis: str, tensor: Tensor) -> list[tuple[int, int]]:
        """Those among them that belong to this rank: over the ranks they make up the tensor."""
        way = self._way(tensor)
        if way.native or self.size == 1:
            return []
        engine = self._engines.get(tensor.device, way)
        return engine.owned_ranges(axis, tensor.numel(), tensor.itemsize) if axis in engine.codecs else []

    @property
    def _fixed_way(self) -> Way:
        return Way(self.algorithm, self.segment_mb, self.rotate, bool(self.codecs))

    def _way(self, tensor: Tensor) -> Way:
        """How the tensor is reduced."""
        if self._automatic is None or self.size == 1:
            return self._fixed_way
        choice = self._automatic.known(tensor.nbytes) or self.tune([tensor.nbytes], tensor.device)[0]
        return choice.way if has_fractions(tensor) or not choice.way.coded else NATIVE

    def _try(self, way: Way, tensor: Tensor) -> None:
        self._start(way, tensor, "mean", _Carried()).wait()

    def _start(self, way: Way, tensor: Tensor, op: Op, carried: "_Carried") -> Work:
        flat = tensor.detach() if tensor.requires_grad or not way.native else tensor
        flat = flat if flat.is_contiguous() else flat.contiguous()

        def complete() -> None:
            if flat.data_ptr() != tensor.data_ptr():
                with torch.no_grad():
                    tensor.copy_(flat)

        if way.native:
            made = () if flat is tensor else (flat,)
            return self._start_native(flat, made, op, complete, carried.record)
        elements = flat.view(-1)
        if way.coded and not has_fractions(elements):
            raise CodecError(f"codecs compress floating-point numbers; found {tensor.dtype}. Use an AllReduce without")
        elements = torch.view_as_real(elements).view(-1) if elements.is_complex() else elements
        divisor = self.size if op == "mean" else 1
        engine = self._engines.get(tensor.device, way)
        residuals = carried.residuals if way.coded else {}
        job = engine(elements, divisor, carried.seed, residuals, carried.update, carried.matrices, carried.record)
        return StagedWork(job.wait, complete)

    def _start_native(
        self, flat: Tensor, made: tuple[Tensor, ...], op: Op, complete: Callable[[], None], record: Record | None
    ) -> Work:
        def finish() -> None:
            if op == "mean":
                with torch.no_grad():
                    flat.div_(self.size)
            if record is not None:
                _keep(record, flat)
            complete()

        with named("an all-reduce", self.group):
            work = self._backend_all_reduce(flat)
        assert work is not None
        return NativeWork(work, self.group, made, finish)

    def _backend_all_reduce(self, flat: Tensor) -> dist.Work | None:
        group = self.group or dist.group.WORLD
        if self.timeout is not None and flat.device.type == "cpu" and group is not None:
            options = dist.AllreduceOptions()  # sums
            options.timeout = timedelta(seconds=self.timeout)
            return group.allreduce([flat], options)
        work: dist.Work | None = dist.all_reduce(flat, group=group, async_op=True)
        return work


@dataclass(frozen=True)
class _Carried:
    """What a caller that reduces one tensor again and again gives with it; see `AllReduce.__call__`."""

    seed: int = 0
    residuals: Mapping[str, Residual] = field(default_factory=dict)
    update: int = sys.maxsize
    matrices: Sequence[Rows] = ()
    record: Record | None = None


def _keep(record: Record, flat: Tensor) -> None:
    """This rank's share of a tensor that nothing but elements say."""
    (kept,) = record.begin([Piece(record.raw)], flat)
    if kept is not None:
        kept.copy(flat.view(-1)[slice(*record.raw)])


def _whole(tensor: Tensor) -> list[Rows]:
    """A tensor as one matrix [first axis, all others]; nothing of one that has a single axis, or complex numbers."""
    if tensor.dim() < 2 or not tensor.numel() or tensor.is_complex():
        return []
    return [Rows("tensor", 0, 0, tensor.shape[0], tensor[0].numel())]
