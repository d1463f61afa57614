"""From logits to the next token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.inference.errors import InferenceError


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Args:
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Only the k likeliest tokens can be drawn; None allows all.
        top_p: Only the likeliest tokens whose probabilities add up to p can be drawn (1904.09751); None allows all.

    Raises:
        InferenceError: a value is out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise InferenceError(f"temperature must be 0 or more, found {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise InferenceError(f"top_k must be at least 1, found {self.top_k}")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise InferenceError(f"top_p must lie in (0, 1], found {self.top_p}")

    def choose(self, logits_BV: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one token id for each row of logits [B, V]; the result has shape [B]."""
        if self.temperature == 0.0:
            return logits_BV.argmax(-1)
        logits_BV = logits_BV.float()
        below_BV = logits_BV - logits_BV.amax(-1, keepdim=True)  # so that no temperature overflows
        scaled_BV = below_BV / max(self.temperature, torch.finfo(torch.float32).tiny)
        if self.top_k is not None:
            least_B1 = scaled_BV.topk(min(self.top_k, scaled_BV.shape[-1]), -1).values[:, -1:]
            scaled_BV = scaled_BV.masked_fill(scaled_BV < least_B1, float("-inf"))
        if self.top_p is not None:
            scaled_BV = _nucleus(scaled_BV, self.top_p)
        return torch.multinomial(scaled_BV.softmax(-1), 1, generator=generator).squeeze(-1)


def _nucleus(logits_BV: Tensor, p: float) -> Tensor:
    """Mask all but the smallest set of likeliest tokens whose probabilities reach p."""
    sorted_BV, order_BV = logits_BV.sort(-1, descending=True)
    probability_BV = sorted_BV.softmax(-1)
    beyond_BV = probability_BV.cumsum(-1) - probability_BV >= p
    return torch.full_like(logits_BV, float("-inf")).scatter(
        -1, order_BV, sorted_BV.masked_fill(beyond_BV, float("-inf"))
    )
