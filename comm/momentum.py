"""Deep gradient compression (Lin et al. 2017, arXiv 1712.01887): momentum where values are sent late, and its warm-up.

A sparse codec with error feedback adds up what it does not send and sends it later, without the momentum it would
have had meanwhile. Momentum correction puts the momentum before the sum: u ← m·u + g, v ← v + u, what the codec chooses
of v is sent, and u is zeroed where it was (v too, but for the rounding of what was sent). The optimizer then must have
no momentum of its own. Sparsity is warmed up: early gradients change too fast to be sent late.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwire.comm.codecs.codec import Codec
from gradwire.comm.codecs.random_k import RandomK
from gradwire.comm.codecs.sparse import check_ratio
from gradwire.comm.codecs.top_k import TopK
from gradwire.comm.errors import CodecError


@dataclass(frozen=True)
class MomentumCorrection:
    """A sparse codec that sends accumulated momentum instead of gradients. All state is the caller's.

    Args:
        codec: chooses what is sent.
        momentum: m, which replaces the optimizer's.
        nesterov: v takes m·u + g instead of u.
    """

    codec: TopK | RandomK
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise CodecError(f"momentum is at least 0 and below 1, found {self.momentum}")

    def encode(
        self,
        gradient: Tensor,
        payload: Tensor,
        velocity: Tensor,
        accumulated: Tensor,
        *,
        seed: int = 0,
        pending_velocity: Tensor,
        pending_accumulated: Tensor,
    ) -> None:
        """Write the payload and the state that holds if the step is kept; all of it float32 [n].

        `velocity` (u) and `accumulated` (v) are as they were after the last kept step, at first zero, and stay as
        they are. pending_velocity may be velocity itself; pending_accumulated overlaps nothing.
        """
        torch.add(gradient, velocity, alpha=self.momentum, out=pending_velocity)
        added = torch.add(gradient, pending_velocity, alpha=self.momentum) if self.nesterov else pending_velocity
        self.codec.encode(accumulated + added, payload, seed=seed, error=pending_accumulated)
        pending_velocity[self.codec.positions(payload, gradient.numel())] = 0.0


@dataclass(frozen=True)
class SparsityWarmup:
    """A sparse codec whose ratio falls geometrically from `start`, in stages: 0.25, 0.0625, … as in the paper.

    Args:
        codec: what it is after the warm-up.
        updates: the length of the warm-up.
        start: the ratio of the first stage.
        stages: ratios before the codec's own, each for the same number of updates.
    """

    codec: TopK | RandomK
    updates: int
    start: float = 0.25
    stages: int = 4

    def __post_init__(self) -> None:
        check_ratio(self.start)
        if self.start < self.codec.ratio:
            raise CodecError(f"the warm-up starts at {self.start}, below the ratio {self.codec.ratio} where it ends")
        if self.updates < 0 or self.stages < 1:
            raise CodecError(f"a warm-up takes ≥ 0 updates in ≥ 1 stages, found {self.updates} in {self.stages}")

    def ratio(self, update: int) -> float:
        """The share that is sent at this update."""
        if update >= self.updates:
            return self.codec.ratio
        stage = update * self.stages // self.updates
        return float(self.start * (self.codec.ratio / self.start) ** (stage / self.stages))

    def at(self, update: int) -> Codec:
        """The codec of this update: a function of its number alone."""
        return replace(self.codec, ratio=self.ratio(update))
