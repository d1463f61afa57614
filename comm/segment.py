"""A part of a tensor on its way through the stages of an all-reduce."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.comm.factors import Rows
from gradwire.comm.layout import Portion
from gradwire.comm.power_sgd import LowRank
from gradwire.comm.recording import Kept
from gradwire.comm.transport import Exchange


class Scratch:
    """Memory that one segment at a time works in; kept for the next one."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self.free: torch.cuda.Event | None = None  # on CUDA: when the segment before is done with it

    def take(self, name: str, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """`count` elements, with any content; the same memory for the same name."""
        found = self._kept.get(name)
        if found is None or found.numel() < count or found.dtype != dtype or found.device != device:
            found = self._kept[name] = torch.empty(count, dtype=dtype, device=device)
        return found[:count]


@dataclass(frozen=True, eq=False)
class Residual:
    """What a rank failed to send along one axis, of the part of a segment (or of a tensor) that it encodes.

    Attributes:
        kept: [n] float32, added to what is encoded next.
        pending: [n] float32, takes its place once the update is kept.
        velocity: Momentum of what is encoded, likewise, where the axis has momentum correction.
        low_rank: The factors, where the axis is reduced in low rank.
    """

    kept: Tensor
    pending: Tensor
    velocity: "Residual | None" = None
    low_rank: LowRank | None = None

    def part(self, start: int, stop: int) -> "Residual":
        velocity = self.velocity.part(start, stop) if self.velocity else None
        return Residual(self.kept[start:stop], self.pending[start:stop], velocity, self.low_rank)

    def kept_now(self) -> "Residual":
        """The update is kept: what was pending counts."""
        velocity = self.velocity.kept_now() if self.velocity else None
        return Residual(self.pending, self.kept, velocity, self.low_rank)


class Job:
    """An all-reduce under way: done when all its segments are, or with the first error."""

    def __init__(self, segments: int) -> None:
        self._left = segments
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._events: list[torch.cuda.Event] = []
        self.error: BaseException | None = None
        if not segments:
            self._over.set()

    def segment_done(self, event: torch.cuda.Event | None = None) -> None:
        """One segment less to wait for; on CUDA, once `event` has happened."""
        with self._lock:
            if event is not None:
                self._events.append(event)
            self._left -= 1
            if not self._left:
                self._over.set()

    def fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._over.set()

    def wait(self) -> None:
        """Return when all is done; on CUDA, when the current stream is made to wait for it."""
        self._over.wait()
        if self.error is not None:
            raise self.error
        for event in self._events:
            torch.cuda.current_stream().wait_event(event)


@dataclass(eq=False)
class Segment:
    """One segment.

    Attributes:
        flat: The whole tensor, one-dimensional; the stages work in its memory.
        portions: What this rank holds before each axis, in the order in which the lane takes them.
        sequence: Number of the segment, the same on every rank; never comes twice.
        seed: For the random choices of codecs; the same on every rank.
        divisor: By which the sum is divided before it is handed out.
        residuals: What is carried over to the next update, by axis.
        measured: Whether the relative error of the codecs is measured on it.
        update: How many updates were reduced before, for codecs that change in the course of a run.
        matrices: Rows of matrices in the tensor, for axes that are reduced in low rank.
        kept: Where the bytes go that this rank keeps of it, if it does.
    """

    flat: Tensor
    portions: tuple[Portion, ...]
    sequence: int
    seed: int
    divisor: int
    job: Job
    residuals: Mapping[str, Residual]
    measured: bool
    update: int = 0
    matrices: tuple[Rows, ...] = ()
    kept: Kept | None = None
    scratch: Scratch = field(default_factory=Scratch)
    exchanges: dict[str, Exchange] = field(default_factory=dict)

    def elements(self, start: int, stop: int) -> Tensor:
        return self.flat[start:stop]

    def take(self, name: str, count: int, dtype: torch.dtype | None = None) -> Tensor:
        """Scratch memory on the tensor's device, in its dtype unless another is given."""
        return self.scratch.take(name, count, dtype or self.flat.dtype, self.flat.device)

    def keep_payload(self, depth: int, payload: Tensor) -> None:
        """What this rank, as an owner, sent to everyone along the axis at `depth`."""
        if self.kept is not None and self.kept.piece.depth == depth:
            self.kept.copy(payload)

    def keep_elements(self) -> None:
        """The segment is reduced."""
        if self.kept is not None and self.kept.piece.depth is None:
            self.kept.copy(self.elements(*self.kept.piece.span))

    def sent(self) -> None:
        """Wait until everything that was sent may be touched."""
        for exchange in self.exchanges.values():
            exchange.sent()
