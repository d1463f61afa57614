"""The one interface of all caches.

Shapes: B sequences, K key/value heads, G query heads that share one, T new tokens, S cached ones, E head
width, M queries, key and value of a key/value head (G + 2).
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gradwire.inference.attention import attention
from gradwire.inference.errors import CacheFullError, InferenceError
from gradwire.inference.model import Layout
from gradwire.inference.rotation import Turn


class Cache(ABC):
    """Keys and values of the tokens that a batch of sequences has had, in memory that was allocated once.

    A model calls `begin(T)` before its first layer, then `attend` in each, in which the T new tokens are stored. Rows
    of a batch end together: shorter ones begin with padding, which `pad` declares and nothing ever sees.

    Attributes:
        layout: What the model keeps of each token.
        rows: Sequences in use.
        chunk: Most tokens of a call; None is no limit.
    """

    chunk: int | None = None

    def __init__(self, layout: Layout, rows: int) -> None:
        self.layout = layout
        self.rows = rows
        self._turn_q: Turn | None = None
        self._turn_k: Turn | None = None
        self._mask_BTS: Tensor | None = None
        self._causal = False

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        ...

    @abstractmethod
    def begin(self, tokens: int) -> None:
        """So many tokens come next in every sequence.

        Raises:
            CacheFullError: there is no room for them, or the model knows no positions for them.
        """
        ...

    @property
    @abstractmethod
    def positions(self) -> Tensor:
        """Positions of the new tokens, [B or 1, T]; 0 for padding."""
        ...

    @abstractmethod
    def update(self, layer: int, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values; all that its queries may see [B, K, S, E], in the order of `mask`.

        For models that compute attention themselves.
        """
        ...

    @abstractmethod
    def reset(self, rows: int) -> None:
        """Forget everything; so many sequences come next."""
        ...

    @abstractmethod
    def pad(self, padding_B: Tensor) -> None:
        """The sequences begin with so many tokens each that are none; before the first token.

        Raises:
            InferenceError: there have been tokens.
        """
        ...

    @abstractmethod
    def repeat(self, times: int) -> None:
        """Have every sequence several times, one copy after the other: what they had so far was computed once.

        Raises:
            InferenceError: there is no room for so many.
        """
        ...

    def wanted(self, x_BTD: Tensor) -> Tensor:
        """Of what a model has computed of the new tokens, that whose logits are asked for: the last of each row."""
        return x_BTD[:, -1:]

    @property
    def mask(self) -> Tensor | None:
        """Which keys of `update` the new queries see, [B or 1, T, S]; None: those up to their own token, and all."""
        return self._mask_BTS

    def attend(self, layer: int, q_BKGTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
        """Store a layer's new keys and values, and mix the values for the queries [B, K, G, T, E].

        Args:
            layer: Counted from 0.
            q_BKGTE: Queries, as yet without positions where the layout has a rotation.
            k_BKTE: Keys, likewise.
            v_BKTE: Values.
        """
        if self._turn_q is not None and self._turn_k is not None:
            q_BKGTE, k_BKTE = self._turn_q(q_BKGTE), self._turn_k(k_BKTE)
        keys_BKSE, values_BKSE = self.update(layer, k_BKTE, v_BKTE)
        if q_BKGTE.dtype != keys_BKSE.dtype:
            keys_BKSE, values_BKSE = keys_BKSE.to(q_BKGTE.dtype), values_BKSE.to(q_BKGTE.dtype)
        return attention(q_BKGTE, keys_BKSE, values_BKSE, self._mask_BTS, self._causal)

    def attend_grouped(self, layer: int, qkv_BTKME: Tensor) -> Tensor:
        """As `attend`, for queries, keys and values as one product makes them; the mixed values [B, T, K·G·E].

        Args:
            layer: Counted from 0.
            qkv_BTKME: For each key/value head its G queries, its key and its value: M = G + 2.
        """
        qkv_BKMTE = qkv_BTKME.permute(0, 2, 3, 1, 4)
        mixed_BKGTE = self.attend(layer, qkv_BKMTE[:, :, :-2], qkv_BKMTE[:, :, -2], qkv_BKMTE[:, :, -1])
        return mixed_BKGTE.permute(0, 3, 1, 2, 4).flatten(2)

    def _turn_to(self, rotation: Tensor) -> None:
        """Turn what comes by cosines and sines [2, T, E/2], or [2, B, T, E/2]."""
        dtype = self.layout.dtype
        if rotation.dim() == 3:
            self._turn_q = self._turn_k = Turn.by(rotation, dtype)
        else:
            self._turn_k = Turn.by(rotation[:, :, None], dtype)
            self._turn_q = self._turn_k.at((slice(None), None))

    def _check_context(self, tokens: int) -> None:
        context = self.layout.context
        if context is not None and tokens > context:
            raise CacheFullError(
                f"{tokens} tokens in a sequence, where the model knows {context} positions: generate fewer, or keep a "
                "window of them (limit='window')"
            )


def check_untouched(length: int) -> None:
    """Refuse to pad sequences that have begun."""
    if length:
        raise InferenceError(f"padding stands before the first token, but the cache holds {length}: reset it first")


def check_rows(rows: int, most: int) -> None:
    """Refuse more sequences than a cache was allocated for."""
    if not 1 <= rows <= most:
        raise InferenceError(f"the cache was allocated for 1 to {most} sequences, found {rows}")


def check_padding(padding_B: Tensor, rows: int) -> None:
    """Refuse padding that is not one whole number for each sequence."""
    if padding_B.shape != (rows,) or padding_B.is_floating_point() or bool((padding_B < 0).any()):
        raise InferenceError(f"padding must be {rows} whole numbers of at least 0, one for each sequence")


def repeated(rows: int, times: int, device: torch.device) -> Tensor:
    """Which row each row of the repeated batch is a copy of."""
    return torch.arange(rows, device=device).repeat_interleave(times)
