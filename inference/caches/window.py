"""A window over a stream of any length: a ring of the last tokens behind the first ones (2309.17453).

Shapes: B sequences, K key/value heads, G query heads that share one, T new tokens, W slots of the ring, F first tokens
that are kept, S keys that are seen, E head width.

Positions are those within the cache: a full one of C = F + W tokens always has positions 0 to C - 1, whatever was let
go. With rotary positions only distances count, and the distances within the ring are those in the stream; so its keys
are stored turned by their place in the stream and never touched again. What moves is where the first tokens seem to be:
they are kept as they came, and turned anew at each step to stand just before the ring.
"""

import math

import torch
from torch import Tensor

from gradwire.inference.caches.cache import Cache, check_padding, check_rows, check_untouched, repeated
from gradwire.inference.caches.storage import MakeStorage, Plain
from gradwire.inference.errors import InferenceError, UnsuitedModelError
from gradwire.inference.model import Layout
from gradwire.inference.rotation import Rotation, rotate

_CHUNK = 512


class Window(Cache):
    """The first tokens and the last ones of each sequence; nothing is shifted or concatenated as tokens come.

    Args:
        layout: What the model keeps of each token.
        rows: Most sequences.
        length: Tokens of each that are kept: C.
        storage: How keys and values lie in memory.
        kept: First tokens that are never let go: F. Without a few of them attention falls apart.

    Raises:
        InferenceError: no room is left for the window, or it is longer than the model's context.
        UnsuitedModelError: the model has learned positions: there are none past its context.
    """

    def __init__(self, layout: Layout, rows: int, length: int, storage: MakeStorage = Plain, kept: int = 4) -> None:
        super().__init__(layout, rows)
        self._rotation = _rotation_of(layout)
        if not 0 <= kept < length:
            raise InferenceError(f"kept first tokens must be 0 or more and fewer than length={length}, found {kept}")
        if layout.context is not None and length > layout.context:
            raise InferenceError(f"a window of {length} tokens is longer than the model's context, {layout.context}")
        self.length, self.kept, self.ring = length, kept, length - kept
        self.most_rows = rows
        self.chunk = _CHUNK
        shape = (rows, layout.kv_heads, length, layout.head_width)
        first = (rows, layout.kv_heads, kept, layout.head_width)
        self._keys = [storage(shape, layout.dtype, layout.device) for _ in range(layout.layers)]
        self._values = [storage(shape, layout.dtype, layout.device) for _ in range(layout.layers)]
        self._first_keys = [Plain(first, layout.dtype, layout.device) for _ in range(layout.layers)]
        self.reset(rows)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (*self._keys, *self._values, *self._first_keys))

    @property
    def positions(self) -> Tensor:
        return self._age_BT.clamp(0, self.length - 1)

    def reset(self, rows: int) -> None:
        check_rows(rows, self.most_rows)
        self.rows = rows
        self._start = self._end = 0
        self._padding_B = torch.zeros(rows, dtype=torch.int64, device=self.layout.device)
        self._most_padding = 0

    def pad(self, padding_B: Tensor) -> None:
        check_untouched(self._end)
        check_padding(padding_B, self.rows)
        self._padding_B = padding_B.to(self.layout.device)
        self._most_padding = int(padding_B.max())

    def repeat(self, times: int) -> None:
        check_rows(self.rows * times, self.most_rows)
        source_B = repeated(self.rows, times, self.layout.device)
        for each in (*self._keys, *self._values, *self._first_keys):
            each.copy(slice(0, len(source_B)), source_B)
        self._padding_B = self._padding_B[source_B]
        self.rows *= times

    def begin(self, tokens: int) -> None:
        self._start, self._end = self._end, self._end + tokens
        self._stream_T = torch.arange(self._start, self._end, device=self.layout.device)
        self._age_BT = self._stream_T - self._padding_B[:, None]  # the place of a token in its own sequence
        self._ring_T = self.kept + self._stream_T % self.ring
        self._stored_2TE = self._rotation.span(self._start, tokens)
        self._turn_to(self._stored_2TE)
        # Where the first tokens seem to be: where they are, until something was let go; then just before the ring.
        least_B1 = (self._end - self.length) * torch.ones_like(self._padding_B)[:, None]
        begin_B1 = torch.maximum(self._padding_B[:, None], least_B1)
        self._turn_first = self._rotation.at(begin_B1 + torch.arange(self.kept, device=self.layout.device))[:, :, None]
        self._mask_BTS = self._mask_of_one() if tokens == 1 else self._mask_of_whole()

    @property
    def empty(self) -> bool:
        """Whether there has been no token."""
        return self._end == 0

    @property
    def whole(self) -> bool:
        """Whether the new tokens are the first ones, and all of them fit."""
        return self._start == 0 and self._end <= self.length

    @property
    def shift(self) -> Tensor:
        """How far ahead of its position each new token's key is stored turned, [B, T]."""
        return self._stream_T - self.positions

    def attend(self, layer: int, q_BKGTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
        if len(self._stream_T) == 1:
            return super().attend(layer, q_BKGTE, k_BKTE, v_BKTE)
        return self._attend_chunk(layer, q_BKGTE, k_BKTE, v_BKTE)

    def update(self, layer: int, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Store one new token, whose key comes turned by its place in the stream, or the first ones of all.

        Raises:
            InferenceError: several tokens, of which some let others go: they see the first ones at different distances.
        """
        if self._start < self._most_padding + self.kept:
            self._keep_first(layer, rotate(k_BKTE, _backwards(self._stored_2TE)), v_BKTE)
        self._write_ring(layer, k_BKTE, v_BKTE)
        if k_BKTE.shape[2] > 1:
            if not self.whole:
                raise InferenceError(f"a full window takes one token at a time, found {k_BKTE.shape[2]}")
            return k_BKTE, v_BKTE
        rows, first = slice(0, self.rows), slice(0, self.kept)
        if self.kept:
            turned = rotate(self._first_keys[layer].read(rows), self._turn_first)
            self._keys[layer].write((rows, slice(None), first), turned)
        filled = (rows, slice(None), slice(0, self.kept + min(self._end, self.ring)))
        return self._keys[layer].read(filled), self._values[layer].read(filled)

    def _mask_of_one(self) -> Tensor | None:
        """Which slots the one new token sees."""
        if self._end - self.ring >= self._most_padding + self.kept:
            return None
        now = self._end - 1
        slots_W = torch.arange(min(self._end, self.ring), device=self.layout.device)
        stream_W = now - (now - slots_W) % self.ring
        first_BF = torch.arange(self.kept, device=self.layout.device) <= self._age_BT
        ring_BW = stream_W >= self._padding_B[:, None] + self.kept
        mask_BS = torch.cat([first_BF, ring_BW], 1)
        mask_BS[:, self.kept + now % self.ring] |= self._age_BT[:, 0] < 0  # padding sees itself, or it would be NaN
        return mask_BS.unsqueeze(1)

    def _mask_of_whole(self) -> Tensor | None:
        """Which of the first tokens, all new, each of them sees."""
        if not self._most_padding:
            return None
        causal_TT = self._stream_T <= self._stream_T[:, None]
        own_TT = self._stream_T == self._stream_T[:, None]
        return causal_TT & (self._stream_T >= self._padding_B[:, None, None]) | own_TT

    def _keep_first(self, layer: int, k_BKTE: Tensor, v_BKTE: Tensor) -> None:
        """Store those of the new tokens that are among the first of their sequence."""
        row, token = ((self._age_BT >= 0) & (self._age_BT < self.kept)).nonzero(as_tuple=True)
        slot = self._age_BT[row, token]
        self._first_keys[layer].write((row, slice(None), slot), k_BKTE[row, :, token])
        self._values[layer].write((row, slice(None), slot), v_BKTE[row, :, token])

    def _write_ring(self, layer: int, k_BKTE: Tensor, v_BKTE: Tensor) -> None:
        slots = (slice(0, self.rows), slice(None), self._ring_T[-self.ring :])
        self._keys[layer].write(slots, k_BKTE[:, :, -self.ring :])
        self._values[layer].write(slots, v_BKTE[:, :, -self.ring :])

    def _attend_chunk(self, layer: int, q_BKGTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
        """Several tokens at once: each has let go of other ones, and sees the first ones at a distance of its own."""
        if self._start < self._most_padding + self.kept:
            self._keep_first(layer, k_BKTE, v_BKTE)
        turned_BKTE = rotate(k_BKTE, self._stored_2TE)
        rows, first = slice(0, self.rows), slice(0, self.kept)
        places_S, old = self._old_places()
        keys_BKSE = torch.cat([self._keys[layer].read((rows, slice(None), old)), turned_BKTE], 2)
        values_BKSE = torch.cat([self._values[layer].read((rows, slice(None), old)), v_BKTE], 2)
        self._write_ring(layer, turned_BKTE, v_BKTE)
        q_first = rotate(q_BKGTE, self._rotation.at(self.positions)[:, :, None, None])
        first_at = self._rotation.at(torch.arange(self.kept, device=self.layout.device))
        k_first = rotate(self._first_keys[layer].read(rows), first_at)
        scores_first = torch.einsum("bkgte,bkfe->bkgtf", q_first, k_first.to(q_first.dtype))
        scores_ring = torch.einsum("bkgte,bkse->bkgts", rotate(q_BKGTE, self._stored_2TE), keys_BKSE.to(q_BKGTE.dtype))
        mask_BTS = self._mask_of_chunk(places_S)
        scores = torch.cat([scores_first, scores_ring], -1) / math.sqrt(self.layout.head_width)
        weights = scores.masked_fill(~mask_BTS[:, None, None], -math.inf).softmax(-1)
        v_first = self._values[layer].read((rows, slice(None), first))
        return torch.einsum("bkgts,bkse->bkgte", weights, torch.cat([v_first, values_BKSE], 2).to(weights.dtype))

    def _old_places(self) -> tuple[Tensor, Tensor]:
        """Places in the stream of what a chunk may see in the ring and in itself, and the slots of the former."""
        oldest = max(self._start - self.ring, 0)
        old = torch.arange(oldest, self._start, device=self.layout.device)
        return torch.cat([old, self._stream_T]), self.kept + old % self.ring

    def _mask_of_chunk(self, places_S: Tensor) -> Tensor:
        first_BTF = torch.arange(self.kept, device=self.layout.device) <= self._age_BT[..., None]
        query_T1 = self._stream_T[:, None]
        near_TS = (places_S <= query_T1) & (places_S > query_T1 - self.ring)
        ring_BTS = near_TS & (places_S >= self._padding_B[:, None, None] + self.kept)
        own_BTS = (places_S == query_T1) & (self._age_BT < 0)[..., None]
        return torch.cat([first_BTF, ring_BTS | own_BTS], -1)


def _backwards(rotation: Tensor) -> Tensor:
    """The turns that undo others."""
    return torch.stack([rotation[0], -rotation[1]])


def _rotation_of(layout: Layout) -> Rotation:
    if layout.rotation is None:
        raise UnsuitedModelError(
            "a window needs rotary positions, which this model does not have: it knows positions up to its context "
            "only (limit='error')"
        )
    return layout.rotation
