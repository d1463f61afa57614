"""What generation gives: tokens as they come, and what was added to a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Finish = Literal["length", "stop"]


@dataclass(frozen=True)
class Token:
    """One new token of one sequence.

    Attributes:
        sequence: Which: the samples of the first prompt, then those of the next.
        id: The token.
        logprob: Natural logarithm of its probability by the model itself, before temperature, cuts and penalties.
        finish: Why the sequence ends with it; None where it goes on.
    """

    sequence: int
    id: int
    logprob: float
    finish: Finish | None


@dataclass(frozen=True)
class Completion:
    """What was added to a prompt.

    Attributes:
        prompt: Which.
        tokens: The new ones.
        logprobs: Of each, as in `Token`.
        finish: `stop` where a stop token or string ended it; `length` where it reached its length.
    """

    prompt: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish


def completion(prompt: int, tokens: Sequence[Token]) -> Completion:
    """A sequence's tokens together."""
    ids, logprobs = tuple(token.id for token in tokens), tuple(token.logprob for token in tokens)
    return Completion(prompt, ids, logprobs, (tokens[-1].finish if tokens else None) or "length")
