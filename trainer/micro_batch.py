"""`batch.micro: auto`: the largest micro-batch that fits into the devices' memory, found by all ranks together."""

from collections.abc import Callable

import torch
from torch import nn


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
            raise torch.OutOfMemoryError(
                "not even a micro-batch of one sample fits into memory: use a smaller model or a shorter context, "
                "activation_checkpointing=true, or precision=bf16"
            )
        size = -(-size // 2)
    return size


def _fits(attempt: Callable[[int], None], size: int) -> bool:
    try:
        attempt(size)
    except torch.OutOfMemoryError:
        return False
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True


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
