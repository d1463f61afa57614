"""Data parallelism for a module: gradients travel in flat buckets while backward still runs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradwire.comm import postscript, recorder
from gradwire.comm.all_reduce import AllReduce
from gradwire.comm.backward_pass import BackwardPass
from gradwire.comm.buckets import Bucket, Slot
from gradwire.comm.choices import Choice
from gradwire.comm.codecs import Bf16
from gradwire.comm.cycle import Cycle
from gradwire.comm.encoded import Encoded
from gradwire.comm.errors import AttachError, BackwardError, CommError
from gradwire.comm.exposure import Exposure
from gradwire.comm.group import give_up, rank_of
from gradwire.comm.memory import Memory
from gradwire.comm.recorder import Recorder
from gradwire.comm.residuals import Residuals
from gradwire.comm.sparse import SparseParameter, local_values, reduce_sparse
from gradwire.comm.telemetry import Traffic
from gradwire.comm.uncleared import Uncleared
from gradwire.comm.works import Op, Work

Observer = Callable[[tuple[str, ...], Tensor], None]
"""Sees a bucket's parameter names and its flat local gradient, read only, before it is sent."""


class Reducer:
    """Reduces an attached module's gradients over the ranks during every backward; made by `attach`.

    After `loss.backward()` returns, every rank's `p.grad` holds the same bits: the sum over ranks, or their mean. A
    parameter that no rank used keeps the gradient it had, None included; one that some ranks used has zeros added for
    the others. The order of summation is a function of the module alone.

    Attributes:
        carried: Sums of what `carry` sent with the last reduction.
    """

    def __init__(
        self,
        all_reduce: AllReduce,
        control: dist.ProcessGroup | None,
        op: Op,
        buckets: Sequence[Bucket],
        sparse: Sequence[SparseParameter],
        frozen: Sequence[tuple[str, nn.Parameter]],
        observer: Observer | None,
    ) -> None:
        self._memory = Memory.of(buckets, all_reduce.size)
        self._all_reduce = all_reduce
        self._control = control
        self._scale = 1.0 / all_reduce.size if op == "mean" else 1.0
        self._sparse = tuple(sparse)
        self._frozen = tuple(frozen)
        self._observer = observer
        self._synchronizing = True
        self._cycle: Cycle | None = None
        self._pass = BackwardPass(self._backward_ended)
        self._uncleared = Uncleared(watched=op == "sum")
        self._failure: CommError | None = None
        self.carried: list[int] = []
        self._carry: Sequence[int] = ()
        self._residuals = Residuals(all_reduce, self.buckets)
        self._reductions = 0
        self._exposure = Exposure(self._memory.device)
        self._handles: list[RemovableHandle] = []
        self._recorder: Recorder | None = None

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The flat buckets, in the order in which they are sent."""
        return self._memory.buckets

    @property
    def synchronizing(self) -> bool:
        """Whether a backward now would reduce gradients (false within `no_sync`)."""
        return self._synchronizing

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the block backward only accumulates this rank's own gradients."""
        before, self._synchronizing = self._synchronizing, False
        try:
            yield
        finally:
            self._synchronizing = before

    def carry(self, counts: Sequence[int]) -> None:
        """Send a few whole numbers with the next reduction; afterwards `carried` holds their sums over the ranks.

        They cost nothing there: they travel with what tells the ranks which gradients exist. Every rank gives as many.

        Args:
            counts: At most four, from 0 on; their sums stay below 2⁶³.

        Raises:
            CommError: More numbers, or one that is negative or too large.
        """
        postscript.check(counts)
        self._carry = counts
        if self._all_reduce.size == 1:
            self.carried = list(counts)

    def reduce(self) -> None:
        """Reduce what was accumulated under `no_sync`, without a backward. A collective.

        Raises:
            CommError: As backward does.
        """
        self.recover()
        self._uncleared.look()
        self._uncleared.check()
        self._cycle = self._new_cycle()
        self._finish()

    def recover(self) -> None:
        """End a reduction that an exception in backward left open, so that the ranks are in step again.

        Happens by itself at the next forward. Ranks whose backward went well learn of it as BackwardError. Gradients
        are to be cleared afterwards.

        Raises:
            CommError: A peer died or did not answer in time.
        """
        if self._cycle is None:
            return
        cycle, self._cycle = self._cycle, None
        self._residuals.discard()
        self._guard(cycle.abandon)

    def detach(self) -> None:
        """Leave the module as it was, with its gradients where they are, for good. A collective."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._cycle = None
        if self._control is not None and self._control is not self._all_reduce.group:
            give_up(self._control)
        self._control = None
        self._all_reduce.close()

    def settle(self, kept: bool) -> None:
        """Say whether the update of the last reduction was applied. What codecs lost of it counts only if it was.

        Where nobody says, at the next reduction, it counts if the reduced gradients were finite.
        """
        self._residuals.settle(kept)

    def rescale(self, factor: float) -> None:
        """The loss will be multiplied with `factor` times what it was (a gradient scaler's new scale over its old)."""
        if factor != 1.0:
            self._residuals.rescale(factor)

    def record(self, on: bool) -> None:
        """Whether to keep, from the next reduction on, what determines it; see `take_encoded`. On every rank the same.

        Raises:
            CommError: A parameter has sparse or complex gradients, or a single process was attached without `recorded`.
        """
        self.recover()
        sparse = [each.name for each in self._sparse]
        ranks, rank = self._all_reduce.size, rank_of(self._all_reduce.group)
        self._recorder = Recorder(self.buckets, sparse, rank, ranks) if on else None

    def take_encoded(self) -> list[Encoded]:
        """This rank's shares of the last reduction; `decode` makes each bucket's `gradients` of those of all ranks.

        One for each bucket, or as many as there are codecs where the segments of a bucket end with different ones. The
        payloads are the caller's. Once they are given back, with `give_back`, a later reduction writes into them.

        Raises:
            CommError: There is nothing, or it was taken already.
        """
        return self._recording.take_encoded()

    def take_presence(self) -> bytes:
        """Which parameters have a gradient after the last reduction, for `install`: the same on every rank.

        Raises:
            CommError: There is nothing, or it was taken already.
        """
        return self._recording.take_presence()

    def give_back(self, encoded: Iterable[Encoded]) -> None:
        """The payloads are not needed any more; from any thread, once each."""
        if self._recorder is not None:
            self._recorder.give_back(encoded)

    def install(self, flats: Sequence[Tensor], presence: bytes | None = None) -> None:
        """Have every `p.grad` as the reduction had it that was recorded, which counts as one more. Not a collective.

        What codecs carry over to the next reduction stays as it is.

        Args:
            flats: For each bucket its `gradients`, decoded.
            presence: What `take_presence` gave; all parameters have a gradient where None.

        Raises:
            CommError: They are of another module.
        """
        self.recover()
        recorder.install(self.buckets, flats, presence)
        self._reductions += 1
        self._uncleared.reduced(self.buckets)

    @property
    def _recording(self) -> Recorder:
        if self._recorder is None:
            raise CommError("nothing is recorded: call record(True) first")
        return self._recorder

    def drain(self) -> None:
        """Wait until nothing is under way: nothing is between two updates, unless gradients come late."""

    def take_traffic(self) -> dict[str, Traffic]:
        """By axis, what the reductions since the last call cost this rank; see `AllReduce.take_traffic`."""
        return self._all_reduce.take_traffic()

    def take_exposed(self) -> float:
        """Seconds since the last call that backward's end waited for reductions."""
        return self._exposure.take()

    @property
    def tolerances(self) -> dict[str, float]:
        """By axis, the relative error past which its codec should not be used (see `fall_back`), where there is one."""
        tolerances = {axis: codec.tolerance for axis, codec in self._all_reduce.codecs.items()}
        return {axis: tolerance for axis, tolerance in tolerances.items() if tolerance is not None}

    def fall_back(self, axis: str) -> None:
        """Send bf16 along `axis` from now on, between two updates, on every rank the same.

        What its codec lost so far is fed back into that, where it has feedback.
        """
        self._all_reduce.recode(axis, Bf16())

    def choices(self) -> list[Choice]:
        """How each bucket is reduced, where the algorithm is "auto"; else none."""
        return self._all_reduce.tune([bucket.flat.nbytes for bucket in self.buckets], self._memory.device)

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs beside the module to resume in the same bits: what codecs carry over, by parameter."""
        carried, choices = self._residuals.state_dict(), self._all_reduce.state_dict()
        state = {"reductions": self._reductions, **carried} if self._all_reduce.codecs or carried else {}
        return {**state, "choices": choices} if choices else state

    def position(self) -> dict[str, Any]:
        """What `state_dict()` holds beside what codecs carry over: the same however the ranks' own gradients were."""
        choices = self._all_reduce.state_dict()
        counted: dict[str, Any] = {"reductions": self._reductions} if self._all_reduce.codecs else {}
        return {**counted, "choices": choices} if choices else counted

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from this rank's own `state_dict()`. A collective where the algorithm is "auto": choices go with it.

        Raises:
            CommError: It is of another rank, topology, codec or module.
        """
        if self._all_reduce.state_dict() != state.get("choices", {}):
            self._all_reduce.load_state_dict(state.get("choices", {}))
            self.choices()
            self._residuals = Residuals(self._all_reduce, self.buckets)
        self._residuals.load_state_dict(state)
        self._reductions = state.get("reductions", 0)

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from the `state_dict()` of every rank of a run on other ranks: the sum of the residuals stays.

        Raises:
            CommError: The states hold residuals, and a single rank that reduces nothing is to take them.
        """
        self._residuals.load_sum(states)
        self._reductions = max((state.get("reductions", 0) for state in states), default=0)

    def keep(self, handles: Sequence[RemovableHandle]) -> None:
        """Own the hooks' handles until `detach`."""
        self._handles.extend(handles)

    def backward_begins(self) -> None:
        """The module's output received its gradient: arrange to be called when the whole backward is over."""
        if not self._pass.running:
            self.recover()
            self._follow()

    def gradient_arrived(self, slot: Slot) -> None:
        """A dense gradient was accumulated into `slot`'s parameter."""
        if self._uncleared.found:
            self._uncleared.check()
        if not self._synchronizing:
            slot.take(1.0)
            return
        cycle = self._cycle
        if cycle is None or not self._pass.running:
            cycle = self._open()
        if cycle.present[slot.index]:
            raise BackwardError(_TWICE.format(name=slot.name))
        self._take(slot)
        cycle.arrived(slot)

    def sparse_gradient_arrived(self) -> None:
        """A gradient was accumulated into a parameter that has sparse ones; it travels when backward is over."""
        if self._synchronizing and (self._cycle is None or not self._pass.running):
            self._open()

    def _open(self) -> Cycle:
        interrupted = self._cycle is not None
        self.recover()
        if interrupted:
            raise BackwardError(_INTERRUPTED)
        self._check_unchanged()
        if not self._pass.running:  # this backward did not come through the module's output
            self._follow()
            self._uncleared.check()
        self._cycle = self._new_cycle()
        return self._cycle

    def _new_cycle(self) -> Cycle:
        if self._failure is not None:
            raise CommError(f"this reducer failed before and its ranks are out of step: {self._failure}")
        if self._recorder is not None:
            self._recorder.begin()
        carry, self._carry = self._carry, ()
        self._residuals.settle()
        self._reductions += 1
        return Cycle(
            self._memory,
            self._start,
            self._all_reduce.size,
            rank_of(self._all_reduce.group),
            self._control,
            self._before_sending if self._observer else None,
            carry,
        )

    def _start(self, bucket: Bucket) -> Work | None:
        return self._residuals.start(
            bucket,
            seed=self._reductions * len(self.buckets) + bucket.index,
            update=self._reductions - 1,
            record=None if self._recorder is None else self._recorder.of(bucket),
        )

    def _follow(self) -> None:
        """A backward has begun, and none of its gradients has arrived."""
        self._pass.follow()
        self._uncleared.look()

    def _backward_ended(self) -> None:
        if self._cycle is not None:
            self._finish()

    def _finish(self) -> None:
        assert self._cycle is not None
        cycle = self._cycle
        with self._exposure.waiting():
            self._guard(lambda: cycle.complete(self._take))
        self._cycle = None
        if cycle.aborted:
            ranks = ", ".join(map(str, cycle.aborted))
            self._residuals.discard()
            raise BackwardError(f"backward failed on rank {ranks} (see its log): clear the gradients on every rank")
        self._residuals.reduced()
        if self._sparse:
            self._guard(self._reduce_sparse)
        self.carried = cycle.carried
        for slot in self._memory.slots:
            if cycle.present[slot.index] and slot.parameter.grad is None:
                slot.parameter.grad = slot.view
        self._uncleared.reduced(self.buckets)
        if self._recorder is not None:
            self._recorder.complete(cycle.present[: len(self._memory.slots)])

    def _guard(self, action: Callable[[], None]) -> None:
        """After a broken collective nobody knows what the peers have: refuse to go on."""
        try:
            action()
        except CommError as error:
            self._failure, self._cycle = error, None
            raise

    def _take(self, slot: Slot) -> None:
        slot.take(self._scale if self._observer is None else 1.0)

    def _before_sending(self, bucket: Bucket) -> None:
        assert self._observer is not None
        self._observer(bucket.names, bucket.gradients)
        if self._scale != 1.0:
            bucket.gradients.mul_(self._scale)

    def _reduce_sparse(self) -> None:
        if self._observer is not None:
            for name, values in local_values(self._sparse):
                self._observer((name,), values)
        if self._all_reduce.size > 1:
            reduce_sparse(self._sparse, self._scale, self._all_reduce.group)

    def _check_unchanged(self) -> None:
        for slot in self._memory.slots:
            if not slot.parameter.requires_grad:
                raise AttachError(_CHANGED.format(name=slot.name, now="frozen", then="trainable"))
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise AttachError(_CHANGED.format(name=name, now="trainable", then="frozen"))


_TWICE = (
    "{name} received a second gradient in one backward (it is used in more than one reentrant checkpoint). Use "
    "torch.utils.checkpoint with use_reentrant=False, or run backward under no_sync() and call reduce()"
)
_INTERRUPTED = (
    "the backward before this one was interrupted by an exception, and this one began without the module's forward: "
    "clear the gradients and repeat it"
)
_CHANGED = (
    "{name} is {now} now and was {then} when the module was attached: set requires_grad on every rank first, then call "
    "detach() and attach() again"
)
