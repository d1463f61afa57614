"""Deep gradient compression (Lin et al. 2017, arXiv 1712.01887): momentum where values are sent late, and its warm-up.

A sparse codec with error feedback adds up what it does not send and sends it later, without the momentum it would
have had meanwhile. Momentum correction puts the momentum before the sum: u ← m·u + g, v ← v + u, the largest values of
v are sent, and u is zeroed where they were (v too, but for the rounding of what was sent). The optimizer then must have
no momentum of its own. Sparsity is warmed up: early gradients change too fast to be sent late.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.comm.codecs.codec import Codec
from gradwire.comm.codecs.sparse import check_ratio
from gradwire.comm.codecs.top_k import Threshold, TopK
from gradwire.comm.errors import CodecError


@dataclass(frozen=True)
class DeepGradientCompression(Codec):
    """Top-k of accumulated momentum instead of gradients, for an optimizer without momentum.

    As a codec it is top-k at `ratio`; momentum and warm-up come with an attached module, which keeps the state: u and v
    of every rank. The ratio falls geometrically in stages: 0.25, 0.0625, … as in the paper.

    Args:
        ratio: the share of values that is sent after the warm-up.
        momentum: m, which replaces the optimizer's.
        nesterov: v takes m·u + g instead of u.
        warmup: updates until the ratio is reached.
        start: the ratio of the warm-up's first stage.
        stages: ratios before the last, each for the same number of updates.
        threshold: as in top-k.
    """

    name: ClassVar[str] = "dgc"
    feedback: ClassVar[bool] = True
    ratio: float = 0.001
    momentum: float = 0.9
    nesterov: bool = False
    warmup: int = 0
    start: float = 0.25
    stages: int = 4
    threshold: Threshold = "sampled"

    def __post_init__(self) -> None:
        TopK(self.ratio, self.threshold)
        check_ratio(self.start)
        if not 0 <= self.momentum < 1:
            raise CodecError(f"momentum is at least 0 and below 1, found {self.momentum}")
        if self.warmup and self.start < self.ratio:
            raise CodecError(f"the warm-up starts at {self.start}, below the ratio {self.ratio} where it ends")
        if self.warmup < 0 or self.stages < 1:
            raise CodecError(f"a warm-up takes ≥ 0 updates in ≥ 1 stages, found {self.warmup} in {self.stages}")

    def ratio_at(self, update: int) -> float:
        """The share that is sent at an update, counted from 0."""
        if update >= self.warmup:
            return self.ratio
        stage = update * self.stages // self.warmup
        return float(self.start * (self.ratio / self.start) ** (stage / self.stages))

    def at(self, update: int) -> TopK:
        return TopK(self.ratio_at(update), self.threshold)

    def accumulate(self, values: Tensor, accumulated: Tensor, velocity: Tensor, pending_velocity: Tensor) -> None:
        """Turn a gradient into what the largest values are sent of; all of it float32 [n].

        Args:
            values: g, becomes v.
            accumulated: v as the last kept update left it; at first 0.
            velocity: u, likewise.
            pending_velocity: becomes the new u.
        """
        torch.add(values, velocity, alpha=self.momentum, out=pending_velocity)
        if self.nesterov:
            values.add_(pending_velocity, alpha=self.momentum).add_(accumulated)
        else:
            torch.add(accumulated, pending_velocity, out=values)

    def clear_sent(self, codec: TopK, payload: Tensor, pending_velocity: Tensor) -> None:
        """What was sent has no momentum left."""
        pending_velocity[codec.positions(payload, pending_velocity.numel())] = 0.0

    def nbytes(self, count: int) -> int:
        return self._last.nbytes(count)

    def encode(self, values: Tensor, payload: Tensor, *, seed: int = 0, error: Tensor | None = None) -> None:
        self._last.encode(values, payload, seed=seed, error=error)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        self._last.decode(payload, out)

    def decode_add(self, payload: Tensor, out: Tensor) -> None:
        self._last.decode_add(payload, out)

    @property
    def _last(self) -> TopK:
        return TopK(self.ratio, self.threshold)
