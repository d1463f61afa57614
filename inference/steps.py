"""One more token for every sequence, with a cache or without.

Shapes: B sequences, T tokens, V vocabulary.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gradwire.inference.caches import Cache
from gradwire.inference.model import CachedModel, Layout

Prompts = Sequence[Sequence[int]]


class Steps(Protocol):
    """A model at work on a batch of sequences."""

    def first(self, prompts: Prompts) -> Tensor:
        """Logits [B, V] after the prompts."""
        ...

    def repeat(self, times: int) -> None:
        """Have every sequence several times, one copy after the other."""
        ...

    def next(self, ids_B: Tensor) -> Tensor:
        """Logits [B, V] after one more token in each sequence."""
        ...


class Cached:
    """Only new tokens are computed.

    Args:
        model: Goes on from the cache.
        cache: Empty, with room for the sequences.
        longest: Tokens to which prompts are padded; those of the longest if not given.
    """

    def __init__(self, model: CachedModel, cache: Cache, longest: int = 0) -> None:
        self._model = model
        self._cache = cache
        self._longest = longest

    def first(self, prompts: Prompts) -> Tensor:
        self._cache.reset(len(prompts))
        longest = max(self._longest, *map(len, prompts))
        padding_B = torch.tensor([longest - len(prompt) for prompt in prompts])
        if bool(padding_B.any()):
            self._cache.pad(padding_B)
        ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        ids_BT = torch.tensor(ids, device=self._cache.layout.device)
        for piece_BT in torch.split(ids_BT, self._cache.chunk or longest, 1):
            logits_B1V = self._model(piece_BT, cache=self._cache)
        return logits_B1V[:, -1]

    def repeat(self, times: int) -> None:
        self._cache.repeat(times)

    def next(self, ids_B: Tensor) -> Tensor:
        return self._model(ids_B.unsqueeze(1), cache=self._cache)[:, -1]


class Uncached:
    """All tokens are computed again for each new one, sequences of the same length together.

    Args:
        model: Token ids [B, T] to logits [B, T, V].
        device: Where token ids go.
        most: It sees the last so many tokens; None is no limit.
        apart: Compute every sequence by itself, so that only their number says how often the model is called.
    """

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        device: torch.device,
        most: int | None = None,
        *,
        apart: bool = False,
    ) -> None:
        self._model = model
        self._device = device
        self._most = most
        self._apart = apart
        self._groups: list[tuple[Tensor, Tensor]] = []  # which sequences, and their tokens

    def first(self, prompts: Prompts) -> Tensor:
        alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for row, prompt in enumerate(prompts):
            alike[row if self._apart else 0, len(prompt)].append(row)
        self._groups = [
            (
                torch.tensor(rows, device=self._device),
                torch.tensor([list(prompts[row]) for row in rows], device=self._device),
            )
            for rows in alike.values()
        ]
        return self._logits()

    def repeat(self, times: int) -> None:
        copies = torch.arange(times, device=self._device)
        self._groups = [
            ((rows[:, None] * times + copies).flatten(), ids_BT.repeat_interleave(times, 0))
            for rows, ids_BT in self._groups
        ]

    def next(self, ids_B: Tensor) -> Tensor:
        self._groups = [(rows, torch.cat([ids_BT, ids_B[rows, None]], 1)) for rows, ids_BT in self._groups]
        return self._logits()

    def _logits(self) -> Tensor:
        found = [
            (rows, self._model(ids_BT if self._most is None else ids_BT[:, -self._most :])[:, -1])
            for rows, ids_BT in self._groups
        ]
        order = torch.cat([rows for rows, _ in found]).argsort()
        return torch.cat([logits_BV for _, logits_BV in found])[order]


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Within the block the modules of a model are in evaluation; each goes back to what it was."""
    training = [each for each in model.modules() if each.training] if isinstance(model, nn.Module) else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def without_gradients(layout: Layout | None) -> Any:
    """A context, also a decorator, in which nothing is recorded for gradients; the cheapest that suits the model.

    Args:
        layout: None for a model that takes no cache.
    """
    return torch.inference_mode() if layout is not None and layout.forgets else torch.no_grad()
