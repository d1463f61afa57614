"""What a model and a cache need to know of each other.

Shapes: B sequences, T tokens, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from gradwire.inference.rotation import Rotation

if TYPE_CHECKING:
    from gradwire.inference.caches.cache import Cache


@dataclass(frozen=True)
class Layout:
    """What a model keeps of each token.

    Args:
        layers: Attention layers.
        kv_heads: Key/value heads of each; on a rank that computes some of them only, those.
        head_width: Numbers in a head's key, and in its value.
        dtype: Of the numbers.
        device: Where they are computed.
        context: Most positions that the model knows; None is no limit.
        rotation: How the cache turns queries and keys by their positions; None where the model does so itself.
        packed: Whether the model gives the logits of what `cache.wanted` picks, so that sequences can lie side by side
            in one row.
        forgets: Whether the model keeps no tensor of a call: then it is called in `torch.inference_mode`, where
            operations cost less, and whose tensors no training may meet.
    """

    layers: int
    kv_heads: int
    head_width: int
    dtype: torch.dtype
    device: torch.device
    context: int | None = None
    rotation: Rotation | None = None
    packed: bool = False
    forgets: bool = False

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_width * self.dtype.itemsize

    def on_meta(self) -> "Layout":
        """The same without memory: to count what something would allocate."""
        return replace(self, device=torch.device("meta"), rotation=None)


@runtime_checkable
class CachedModel(Protocol):
    """A model that can go on from a cache: this is all that generation asks of it."""

    def kv_layout(self) -> Layout:
        """What it keeps of each token."""
        ...

    def __call__(self, ids_BT: Tensor, *, cache: "Cache") -> Tensor:
        """Logits [B, 1, V] after the last of the next tokens [B, T].

        It calls `cache.begin(T)` first, and `cache.attend` in each layer.
        """
        ...
