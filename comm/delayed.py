"""Gradients that are reduced while the next ones are computed, and applied one update late."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.comm.all_reduce import AllReduce
from gradwire.comm.buckets import Bucket, Slot
from gradwire.comm.cycle import Cycle
from gradwire.comm.errors import BackwardError, CommError
from gradwire.comm.flight import Flight
from gradwire.comm.memory import Memory
from gradwire.comm.reducer import Observer, Reducer
from gradwire.comm.telemetry import Traffic, by_axis
from gradwire.comm.uncleared import Uncleared
from gradwire.comm.works import Op


class DelayedReducer(Reducer):
    """A reducer whose gradients come one update late; made by `attach` with overlap="update".

    After backward t, `p.grad` holds the reduced gradient of backward t − 1, which was under way during the forward and
    backward passes in between; after the first backward there is none. What backward t computed is sent once the fate
    of t − 1 is known: at `settle`, or at the next forward, and at once where no codec has error feedback. `carried`
    belongs to the gradient that is given: zeros after the first backward.

    Gradients must be cleared before every update, whatever the operation. A backward that fails on one rank cannot be
    repeated, because its peers have gone on: the ranks start again from a snapshot. A gradient scaler cannot be
    followed, and nothing can be recorded.

    Args:
        all_reduce: Between whom and how.
        control: The same ranks, for small tensors on the CPU.
        op: "sum" or "mean".
        buckets: Two sets of the same layout, each with memory of its own.
        frozen: Parameters that are not trained, by name.
        observer: Sees local gradients before they are sent.
    """

    def __init__(
        self,
        all_reduce: AllReduce,
        control: dist.ProcessGroup | None,
        op: Op,
        buckets: tuple[Sequence[Bucket], Sequence[Bucket]],
        frozen: Sequence[tuple[str, nn.Parameter]],
        observer: Observer | None,
    ) -> None:
        super().__init__(all_reduce, control, op, buckets[0], (), frozen, observer)
        self._uncleared = Uncleared(watched=True)  # a mistake under "mean", too
        self._other = Memory.of(buckets[1], all_reduce.size)  # where the gradient lies that was given last
        self._flight: Flight | None = None
        self._traffic: list[Mapping[str, Traffic]] = []

    def settle(self, kept: bool) -> None:
        """Say whether the gradient given last was applied; what was computed since is sent now."""
        super().settle(kept)
        self._launch()

    def rescale(self, factor: float) -> None:
        """Refused: the gradient under way has the old scale.

        Raises:
            CommError: The factor is not 1.
        """
        if factor != 1.0:
            raise CommError(
                "overlap='update' cannot follow a new loss scale: the gradient that is under way has the old one. "
                "Train in bf16 or fp32, or with overlap='backward'"
            )

    def recover(self) -> None:
        """Send what still waits for its turn. Where a backward failed, tell the peers and give up.

        Raises:
            BackwardError: A backward of this rank was interrupted.
            CommError: A peer died or did not answer in time.
        """
        self._launch()
        if self._cycle is None:
            return
        cycle, self._cycle = self._cycle, None
        self._land()
        self._guard(cycle.abandon)
        self._fail(BackwardError(_INTERRUPTED))

    def record(self, on: bool) -> None:
        """Refused.

        Raises:
            CommError: It is to be switched on.
        """
        if on:
            raise CommError("with overlap='update' nothing is recorded: use overlap='backward'")

    def install(self, flats: Sequence[Tensor], presence: bytes | None = None) -> None:
        """Refused: nothing can have been recorded.

        Raises:
            CommError: Always.
        """
        raise CommError("with overlap='update' gradients cannot be put back: use overlap='backward'")

    def drain(self) -> None:
        """Wait until nothing is under way; what was computed last is reduced then, and still to be given. A collective.

        Raises:
            CommError: A peer died or did not answer in time.
        """
        self._launch()
        self._land()

    def detach(self) -> None:
        """Leave the module as it was, for good. The gradient under way is dropped. A collective."""
        if self._failure is None:
            self.drain()
        self._flight = None
        super().detach()

    def fall_back(self, axis: str) -> None:
        self.drain()
        super().fall_back(axis)

    def take_traffic(self) -> dict[str, Traffic]:
        """By axis, what the reductions cost whose gradients were given since the last call."""
        taken, self._traffic = self._traffic, []
        return by_axis(taken)

    def state_dict(self) -> dict[str, Any]:
        """As `Reducer.state_dict`, with what is under way, which is waited for. A collective.

        `in_flight` is the same on every rank: gradients by name, live ones, which later updates overwrite. Whether what
        codecs lost of them counts is decided now: it does if they are finite.
        """
        self.drain()
        state, flight = super().state_dict(), self._flight
        if flight is None:
            return state
        errors = {axis: traffic.error for axis, traffic in flight.traffic.items()}
        return {**state, "in_flight": flight.state_dict(), "errors": errors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from this rank's own `state_dict()`. A collective where that of a `Reducer` is.

        Raises:
            CommError: It is of another rank, topology, codec or module.
        """
        self._check(state.get("in_flight", {}))
        self._quiet()
        super().load_state_dict(state)
        self._put_in_flight(state)

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """As `Reducer.load_state_dicts`; the gradient that was under way is the same in all of them."""
        first = next((state for state in states if "in_flight" in state), {})
        self._check(first.get("in_flight", {}))
        self._quiet()
        super().load_state_dicts(states)
        self._put_in_flight({**first, "errors": {}})

    def gradient_arrived(self, slot: Slot) -> None:
        super().gradient_arrived(self._memory.slots[slot.index])

    def _new_cycle(self) -> Cycle:
        cycle = super()._new_cycle()
        cycle.hold()
        return cycle

    def _finish(self) -> None:
        assert self._cycle is not None
        cycle, self._cycle = self._cycle, None
        cycle.fill(self._take)
        with self._exposure.waiting():
            self._land()
        self._give(self._flight, len(cycle.carried))
        self._flight = Flight(self._memory, cycle)
        self._memory, self._other = self._other, self._memory
        self._uncleared.reduced(self.buckets)
        if self._residuals.settled:
            self._launch()

    def _give(self, flight: Flight | None, numbers: int) -> None:
        """What has been reduced becomes the gradient; before there is anything, nothing does."""
        for slot in self._other.slots:
            given = flight is not None and slot.index in flight.present
            slot.parameter.grad = slot.view if given else None
        self.carried = [0] * numbers if flight is None else flight.carried
        if flight is not None:
            self._traffic.append(flight.traffic)

    def _launch(self) -> None:
        """Send what was computed last, if that has not been done: the fate of what was sent before is known now."""
        flight = self._flight
        if flight is None or flight.sent or flight.cycle is None or self._failure is not None:
            return
        flight.sent = True
        self._residuals.settle()
        self._guard(flight.cycle.send)

    def _land(self) -> None:
        """Wait for what is under way, once."""
        flight = self._flight
        if flight is None or flight.cycle is None:
            return
        cycle, flight.cycle = flight.cycle, None
        self._guard(cycle.wait)
        if cycle.aborted:
            ranks = ", ".join(map(str, cycle.aborted))
            self._fail(BackwardError(_FAILED.format(ranks=ranks)))
        self._residuals.reduced(flight.memory.buckets)
        flight.present = frozenset(slot.index for slot in flight.memory.slots if cycle.present[slot.index])
        flight.carried, flight.traffic = cycle.carried, self._all_reduce.take_traffic()

    def _fail(self, error: CommError) -> NoReturn:
        self._failure, self._cycle = error, None
        raise error

    def _quiet(self) -> None:
        """Nothing is under way, and nothing is left of what was."""
        if self._flight is not None and self._flight.sent:
            self._land()
        self._flight, self._traffic = None, []
        for slot in self._memory.slots:
            slot.parameter.grad = None

    def _check(self, in_flight: Mapping[str, Any]) -> None:
        shapes = {slot.name: slot.view.shape for slot in self._memory.slots}
        for name, gradient in in_flight.get("gradients", {}).items():
            if shapes.get(name) != gradient.shape:
                raise CommError(
                    f"the saved gradient of {name} has the shape {list(gradient.shape)}; the module has "
                    f"{list(shapes[name]) if name in shapes else 'no such parameter that is trained'}"
                )

    @torch.no_grad()
    def _put_in_flight(self, state: Mapping[str, Any]) -> None:
        if "in_flight" not in state:
            return
        gradients: Mapping[str, Tensor] = state["in_flight"]["gradients"]
        present = [slot for slot in self._other.slots if slot.name in gradients]
        for slot in present:
            slot.view.copy_(gradients[slot.name])
        self._flight = Flight(
            self._other,
            cycle=None,
            sent=True,
            present=frozenset(slot.index for slot in present),
            carried=list(state["in_flight"]["carried"]),
            traffic={axis: Traffic(0, 0.0, 0.0, 0.0, error) for axis, error in state["errors"].items()},
        )


_INTERRUPTED = (
    "a backward was interrupted by an exception: with overlap='update' the other ranks have gone on without it, so it "
    "cannot be repeated. Start all ranks again from a snapshot"
)
_FAILED = (
    "the backward before this one failed on rank {ranks} (see its log): with overlap='update' it cannot be repeated. "
    "Start all ranks again from a snapshot"
)
