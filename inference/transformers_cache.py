"""Causal language models of transformers on our caches, through transformers' own Cache interface.

Importing this module imports transformers.

Shapes: B sequences, T new tokens, K key/value heads, S keys that are seen, E head width, V vocabulary.
"""

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import cache_utils

from gradwire.inference.caches import Cache, Window
from gradwire.inference.errors import UnsuitedModelError
from gradwire.inference.model import Layout
from gradwire.inference.rotation import rotate
from gradwire.inference.transformers_models import check_suited, config_of, layout_of

_AnyLayer: Any = cache_utils.CacheLayerMixin
_AnyCache: Any = cache_utils.Cache
_APART = 5  # positions, in the check that a model turns its keys as its frequencies say


class TransformersModel(nn.Module):
    """A transformers causal language model as `generate` takes it.

    Args:
        model: With attention over all earlier tokens in every layer.

    Raises:
        UnsuitedModelError: it has layers of another kind.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        check_suited(model)
        self.model = model

    def forward(self, ids_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits [B, T, V] of token ids [B, T]; with a cache, those of the last token alone [B, 1, V]."""
        if cache is not None:
            return continue_from(self.model, ids_BT, cache)
        logits_BTV: Tensor = self.model(input_ids=ids_BT, use_cache=False).logits
        return logits_BTV

    def kv_layout(self) -> Layout:
        """What it keeps of each token."""
        return layout_of(self.model)


def continue_from(model: nn.Module, ids_BT: Tensor, cache: Cache) -> Tensor:
    """Logits [B, 1, V] after the last of the next tokens [B, T].

    A window takes them one at a time where it lets tokens go: such a model turns its queries before they can see the
    first tokens at different distances.

    Raises:
        CacheFullError: more tokens than the cache holds.
        UnsuitedModelError: the model turns its keys in another way than its frequencies say, so that it has no window.
    """
    if isinstance(cache, Window) and cache.empty:
        _check_turning(model, cache.layout)
    for piece_BT in _pieces(ids_BT, cache):
        cache.begin(piece_BT.shape[1])
        logits_B1V: Tensor = _call(model, piece_BT, _bridge(cache), cache.positions, _mask(model, cache))
    return logits_B1V


def _pieces(ids_BT: Tensor, cache: Cache) -> list[Tensor]:
    if not isinstance(cache, Window):
        return [ids_BT]
    first = cache.length if cache.empty else 1
    return [ids_BT[:, :first], *(ids_BT[:, token : token + 1] for token in range(first, ids_BT.shape[1]))]


def _call(model: nn.Module, ids_BT: Tensor, past: Any, positions: Tensor, mask: Tensor | None) -> Tensor:
    kind: Any = type(model)  # of which mypy thinks that it cannot be hashed
    known = _arguments(kind)
    named: dict[str, Any] = {"cache" if "cache" in known else "past_key_values": past}
    if "logits_to_keep" in known:
        named["logits_to_keep"] = 1
    out: Any = model(input_ids=ids_BT, position_ids=positions, attention_mask=mask, use_cache=True, **named)
    logits_B1V: Tensor = out.logits[:, -1:]
    return logits_B1V


@functools.cache
def _arguments(kind: type[nn.Module]) -> frozenset[str]:
    return frozenset(inspect.signature(kind.forward).parameters)


def _mask(model: nn.Module, cache: Cache) -> Tensor | None:
    """What each new token sees, as the model's attention wants it."""
    mask_BTS = cache.mask
    eager = config_of(model)._attn_implementation == "eager"
    if mask_BTS is None and not eager:
        return None
    if mask_BTS is None:
        tokens = cache.positions.shape[1]
        mask_BTS = torch.ones(1, tokens, tokens, dtype=torch.bool, device=cache.layout.device).tril()
    if not eager:
        return mask_BTS[:, None]
    dtype = cache.layout.dtype
    return torch.zeros(mask_BTS.shape, dtype=dtype, device=mask_BTS.device).masked_fill(
        ~mask_BTS, torch.finfo(dtype).min
    )[:, None]


def _bridge(cache: Cache) -> Any:
    """A cache of ours as transformers sees it, for one call."""
    there = back = None
    if isinstance(cache, Window) and cache.layout.rotation is not None and bool(cache.shift.any()):
        there, back = (cache.layout.rotation.at(shift)[:, :, None] for shift in (cache.shift, -cache.shift))
    return _AnyCache(layers=[_Layer(cache, layer, there, back) for layer in range(cache.layout.layers)])


class _Layer(_AnyLayer):  # type: ignore[misc]  # transformers is typed in part only
    """One layer of a cache of ours.

    Args:
        cache: Told of the new tokens already.
        layer: Counted from 0.
        there: Turns new keys from the positions within a window to where the window stores them; None leaves them.
        back: Turns stored keys to positions within the window.
    """

    is_sliding = False

    def __init__(self, cache: Cache, layer: int, there: Tensor | None, back: Tensor | None) -> None:
        super().__init__()
        self._cache, self._layer, self._there, self._back = cache, layer, there, back
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: memory was allocated before."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Store new keys and values [B, K, T, E]; all that are seen [B, K, S, E]."""
        self._check(key_states, value_states)
        if self._there is None or self._back is None:
            return self._cache.update(self._layer, key_states, value_states)
        keys_BKSE, values_BKSE = self._cache.update(self._layer, rotate(key_states, self._there), value_states)
        return (key_states if key_states.shape[2] > 1 else rotate(keys_BKSE, self._back)), values_BKSE

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that are seen, and none before them; asked only where no mask is needed."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Tokens before the new ones; asked only where no mask is needed, and positions are given."""
        return 0

    def get_max_length(self) -> int:
        """No limit that transformers should know: the cache itself says when it is full."""
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.20

    def _check(self, keys: Tensor, values: Tensor) -> None:
        layout = self._cache.layout
        expected = (layout.kv_heads, layout.head_width)
        for states in (keys, values):
            if (states.shape[1], states.shape[3]) != expected:
                raise UnsuitedModelError(
                    f"layer {self._layer} has {states.shape[1]} key/value heads of width {states.shape[3]}, where the "
                    f"configuration says {expected[0]} of {expected[1]}: such a model cannot be cached here"
                )


class _Seen(_AnyLayer):  # type: ignore[misc]  # transformers is typed in part only
    """Remembers a layer's keys as they came."""

    is_sliding = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is allocated."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Keys and values as they are."""
        self.keys = key_states
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Only the queries' own tokens."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """None before."""
        return 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1


@torch.no_grad()
def _check_turning(model: nn.Module, layout: Layout) -> None:
    """Compare the first layer's keys of one token at two positions."""
    seen = [_Seen() for _ in range(layout.layers)]
    ids_BT = torch.zeros(1, 2, dtype=torch.int64, device=layout.device)
    _call(model, ids_BT, _AnyCache(layers=seen), torch.tensor([[0, _APART]], device=layout.device), None)
    keys_K2E = seen[0].keys[0].float()
    assert layout.rotation is not None, "a window has a rotation"
    turned_KE = rotate(keys_K2E[:, :1], layout.rotation.span(_APART, 1))[:, 0]
    if not torch.allclose(turned_KE, keys_K2E[:, 1], rtol=1e-2, atol=1e-2 * float(keys_K2E.abs().max())):
        raise UnsuitedModelError(
            f"{type(model).__name__} turns its keys in another way than pairs of halves by its frequencies: it has no "
            "window here (limit='error')"
        )
