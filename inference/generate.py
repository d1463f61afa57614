"""Generation: continuing prompts token by token.

Shapes: B sequences, T tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from gradwire.inference.caches import Caching
from gradwire.inference.completion import Completion, Token, completion
from gradwire.inference.errors import InferenceError
from gradwire.inference.run import Lockstep, Model, Run
from gradwire.inference.sampling import Sampling, seeds_of
from gradwire.inference.steps import Prompts
from gradwire.inference.stopping import Stop


def generate(
    model: Model,
    prompts: Tensor | Prompts,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    *,
    samples: int = 1,
    seed: int | Sequence[int] = 0,
    stop: Stop | None = None,
    caching: Caching | None = None,
    lockstep: Lockstep | None = None,
    agree: Callable[[Tensor], Tensor] | None = None,
) -> list[Completion]:
    """Continue each prompt by up to `max_new_tokens` tokens.

    The model is evaluated (dropout off), its gradients and the caller's random numbers are left alone.

    Args:
        model: One that takes a cache, or any function of token ids [B, T] to logits [B, T, V].
        prompts: Token ids [B, T], or a sequence of sequences of unequal lengths.
        max_new_tokens: Most tokens to add.
        sampling: How tokens are chosen; by the model's own probabilities if not given.
        samples: Continuations of each prompt; the prompt is computed once.
        seed: One from which each sequence's is derived, or one for each sequence. What a sequence draws depends on its
            own seed and positions alone, not on what else is in the batch.
        stop: What ends a sequence early.
        caching: Which cache is used, and what happens past its end; contiguous and an error if not given. Of a model
            that takes none, `length` is the most tokens it can see, and `window` lets it see the last so many.
        lockstep: For ranks that must call the model equally often.
        agree: For ranks that compute one model together: given the chosen tokens [B] of each step, gives those of one
            of the ranks, so that no rounding can part them.

    Returns:
        One for each sample of each prompt, in order.

    Raises:
        CacheFullError: a sequence would be longer than the cache or the model's context.
        InferenceError: an empty prompt, or a value out of range.
    """
    stream = stream_tokens(
        model,
        prompts,
        max_new_tokens,
        sampling,
        samples=samples,
        seed=seed,
        stop=stop,
        caching=caching,
        lockstep=lockstep,
        agree=agree,
    )
    count = len(prompts) * samples
    tokens: list[list[Token]] = [[] for _ in range(count)]
    for token in stream:
        tokens[token.sequence].append(token)
    return [completion(index // samples, each) for index, each in enumerate(tokens)]


def stream_tokens(
    model: Model,
    prompts: Tensor | Prompts,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    *,
    samples: int = 1,
    seed: int | Sequence[int] = 0,
    stop: Stop | None = None,
    caching: Caching | None = None,
    lockstep: Lockstep | None = None,
    agree: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Token]:
    """As `generate`, each token as soon as it is there. The model stays in evaluation until the iterator is closed."""
    rows = rows_of(prompts)
    _check(max_new_tokens, samples)
    return Run(
        model,
        rows,
        samples,
        max_new_tokens,
        sampling or Sampling(),
        seeds_of(seed, len(rows) * samples),
        stop or Stop(),
        caching or Caching(),
        lockstep,
        agree or (lambda ids_B: ids_B),
    ).stream()


def rows_of(prompts: Tensor | Prompts) -> list[list[int]]:
    """Prompts as lists of token ids.

    Raises:
        InferenceError: there is none, or one is empty.
    """
    rows: Any = prompts.tolist() if isinstance(prompts, Tensor) else [list(prompt) for prompt in _rows(prompts)]
    if not rows or not all(isinstance(row, list) and row for row in rows):
        raise InferenceError("a prompt must be token ids, at least one: [B, T], or a sequence of sequences")
    return list(rows)


def _rows(prompts: Prompts) -> Prompts:
    if any(isinstance(prompt, int) for prompt in prompts):
        raise InferenceError("a prompt must be token ids, at least one: [B, T], or a sequence of sequences")
    return prompts


def _check(max_new_tokens: int, samples: int) -> None:
    if max_new_tokens < 0 or samples < 1:
        raise InferenceError(
            f"max_new_tokens must be 0 or more and samples at least 1, found {max_new_tokens} and {samples}"
        )
