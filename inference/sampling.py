"""From logits to the next token.

Shapes: B sequences, V vocabulary.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.inference.errors import InferenceError

_BITS = 48  # of a random number: fewer than a double has, so that none rounds to 1


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Args:
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Only the k likeliest tokens can be drawn; None allows all.
        top_p: Only the likeliest tokens whose probabilities add up to p can be drawn (1904.09751); None allows all.
        min_p: Only tokens at least p times as probable as the likeliest can be drawn (2407.01082); None allows all.
        repetition_penalty: Tokens that the sequence has already get their logits divided by this where positive,
            multiplied where negative (1909.05858); 1 leaves them as they are.

    Raises:
        InferenceError: a value is out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise InferenceError(f"temperature must be 0 or more, found {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise InferenceError(f"top_k must be at least 1, found {self.top_k}")
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and not 0.0 < share <= 1.0:
                raise InferenceError(f"{name} must lie in (0, 1], found {share}")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise InferenceError(f"repetition_penalty must be above 0, found {self.repetition_penalty}")

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0.0

    def choose(self, logits_BV: Tensor, uniform_B: Tensor | None = None, seen_BV: Tensor | None = None) -> Tensor:
        """One token id for each row of logits; the result has shape [B].

        Args:
            logits_BV: As the model made them.
            uniform_B: A random number in [0, 1) for each row; not needed where nothing is drawn.
            seen_BV: Which tokens each sequence has already; not needed without a repetition penalty.
        """
        if seen_BV is not None and self.repetition_penalty != 1.0:
            penalty = self.repetition_penalty
            penalized_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
            logits_BV = torch.where(seen_BV, penalized_BV, logits_BV)
        if self.greedy:
            return logits_BV.argmax(-1)
        assert uniform_B is not None, "drawing needs random numbers"
        return _draw(self._allowed(logits_BV.float()).softmax(-1), uniform_B)

    def _allowed(self, logits_BV: Tensor) -> Tensor:
        """Logits by temperature, -inf where a token cannot be drawn."""
        below_BV = logits_BV - logits_BV.amax(-1, keepdim=True)  # so that no temperature overflows
        scaled_BV = below_BV / max(self.temperature, torch.finfo(torch.float32).tiny)
        if self.top_k is not None:
            least_B1 = scaled_BV.topk(min(self.top_k, scaled_BV.shape[-1]), -1).values[:, -1:]
            scaled_BV = scaled_BV.masked_fill(scaled_BV < least_B1, float("-inf"))
        if self.top_p is not None:
            scaled_BV = _nucleus(scaled_BV, self.top_p)
        if self.min_p is not None:  # relative to the likeliest, whose logit is 0 here
            scaled_BV = scaled_BV.masked_fill(scaled_BV.exp() < self.min_p, float("-inf"))
        return scaled_BV


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) that a sequence with this seed draws its token at this position with."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    number: int = int.from_bytes(digest, "little") >> (64 - _BITS)
    return number / (1 << _BITS)


def seeds_of(seed: int | Sequence[int], sequences: int) -> list[int]:
    """A seed for each sequence: those given, or derived from one.

    Raises:
        InferenceError: there is not one for each.
    """
    if not isinstance(seed, int):
        if len(seed) != sequences:
            raise InferenceError(f"seeds must be one for each of {sequences} sequences, found {len(seed)}")
        return list(seed)
    digests = (hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest() for index in range(sequences))
    return [int.from_bytes(digest, "little") >> 1 for digest in digests]


def _draw(probability_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Each row's token at which its cumulated probability passes its random number."""
    cumulated_BV = _cumulated(probability_BV.double())
    wanted_B1 = uniform_B.double().unsqueeze(-1) * cumulated_BV[:, -1:]
    drawn_B: Tensor = torch.searchsorted(cumulated_BV, wanted_B1, right=True).squeeze(-1)
    return drawn_B.clamp_max(probability_BV.shape[-1] - 1)  # NaN passes nothing


def _nucleus(logits_BV: Tensor, p: float) -> Tensor:
    """Mask all but the smallest set of likeliest tokens whose probabilities reach p."""
    sorted_BV, order_BV = logits_BV.sort(-1, descending=True)
    probability_BV = sorted_BV.softmax(-1)
    beyond_BV = _cumulated(probability_BV) - probability_BV >= p
    return torch.full_like(logits_BV, float("-inf")).scatter(
        -1, order_BV, sorted_BV.masked_fill(beyond_BV, float("-inf"))
    )


def _cumulated(probability_BV: Tensor) -> Tensor:
    """Sums from the first token on; on the CPU where sums must be the same each time and the GPU's need not be."""
    if probability_BV.is_cuda and torch.are_deterministic_algorithms_enabled():
        return probability_BV.cpu().cumsum(-1).to(probability_BV.device)
    return probability_BV.cumsum(-1)
