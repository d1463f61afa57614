"""The largest micro-batch that fits into the devices' memory, found by all ranks together."""

import gc
from collections.abc import Callable
from typing import Final

import torch
from torch import nn

_NOT_ONE: Final = (
    "not even a micro-batch of one sample fits into memory: use a smaller model or a shorter context, "
    "activation_checkpointing=true, or precision=bf16"
)
_WORDS: Final = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")


def largest_micro_batch(share: int, attempt: Callable[[int], None], agree: Callable[[bool], bool]) -> int:
    """The largest of share, ⌈share/2⌉, ⌈share/4⌉, … for which `attempt` runs out of memory on no rank.

    Args:
        share: Samples of a rank's whole share of the largest global batch.
        attempt: One forward and backward pass with so many samples.
        agree: Combines the ranks' answers; true only if all are.

    Raises:
        torch.OutOfMemoryError: not even one sample fits.
    """
    size = max(share, 1)
    while not agree(_fits(attempt, size)):
        if size == 1:
            raise torch.OutOfMemoryError(_NOT_ONE)
        size = -(-size // 2)
    return size


def most_that_fit(limit: int, attempt: Callable[[int], None], agree: Callable[[bool], bool]) -> int:
    """The largest size up to `limit` for which `attempt` runs out of memory on no rank, to an eighth of it.

    Sizes double until one does not fit; then the distance to the last one that fits is halved.

    Args:
        limit: Largest size that is of interest.
        attempt: One forward and backward pass with so many samples.
        agree: Combines the ranks' answers; true only if all are.

    Raises:
        torch.OutOfMemoryError: not even one sample fits.
    """
    fits, fails, size = 0, limit + 1, 1
    while fits < limit and (fails > limit or fails - fits > max(1, fits // 8)):
        if agree(_fits(attempt, size)):
            fits = size
        elif size == 1:
            raise torch.OutOfMemoryError(_NOT_ONE)
        else:
            fails = size
        size = min(2 * fits, limit) if fails > limit else (fits + fails) // 2
    return fits


def _fits(attempt: Callable[[int], None], size: int) -> bool:
    try:
        attempt(size)
    except (RuntimeError, MemoryError) as error:
        if not _is_lack_of_memory(error):
            raise
        return False
    finally:  # the error and its frames are gone by now, and with them what they held
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True


def _is_lack_of_memory(error: Exception) -> bool:
    """torch's own error for it, or the words in which the CPU's allocator and CUDA's libraries say it."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or any(words in str(error) for words in _WORDS)


class Untouched:
    """A context in which the model may run: afterwards its buffers are as before and it holds no gradients."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        for name, buffer in self._model.named_buffers():
            buffer.copy_(self._buffers[name])
        self._model.zero_grad()
