"""One stretch of memory for each sequence.

Shapes: B sequences, K key/value heads, T new tokens, N queries and key of a key/value head, M those and its
value, S cached ones, E head width.
"""

import torch
from torch import Tensor
from torch.nn import functional

from gradwire.inference.caches.cache import Cache, check_padding, check_rows, check_untouched, repeated
from gradwire.inference.caches.storage import MakeStorage, Plain
from gradwire.inference.errors import CacheFullError
from gradwire.inference.model import Layout
from gradwire.inference.rotation import Turn


class Contiguous(Cache):
    """Room for `length` tokens of each sequence, filled from the front; only what is filled is read.

    Args:
        layout: What the model keeps of each token.
        rows: Most sequences.
        length: Most tokens of each, padding included.
        storage: How keys and values lie in memory.
    """

    def __init__(self, layout: Layout, rows: int, length: int, storage: MakeStorage = Plain) -> None:
        super().__init__(layout, rows)
        shape = (2 * layout.layers, rows, layout.kv_heads, length, layout.head_width)  # keys, values, keys, …
        self.length = length
        self.most_rows = rows
        self._storage = storage(shape, layout.dtype, layout.device)
        self._padding_B: Tensor | None = None
        self._start = self._end = 0
        self._turns: Turn | None = None

    @property
    def nbytes(self) -> int:
        return self._storage.nbytes

    @property
    def positions(self) -> Tensor:
        positions_1T = torch.arange(self._start, self._end, device=self.layout.device).unsqueeze(0)
        return positions_1T if self._padding_B is None else (positions_1T - self._padding_B[:, None]).clamp_min(0)

    def reset(self, rows: int) -> None:
        check_rows(rows, self.most_rows)
        self.rows = rows
        self._padding_B = None
        self._start = self._end = 0

    def pad(self, padding_B: Tensor) -> None:
        check_untouched(self._end)
        check_padding(padding_B, self.rows)
        self._padding_B = padding_B.to(self.layout.device) if bool(padding_B.any()) else None

    def repeat(self, times: int) -> None:
        check_rows(self.rows * times, self.most_rows)
        source_B = repeated(self.rows, times, self.layout.device)
        every, filled = slice(None), slice(0, self._end)
        for number in range(2 * self.layout.layers):
            target = (slice(number, number + 1), slice(0, len(source_B)), every, filled)
            self._storage.copy(target, (slice(number, number + 1), source_B, every, filled))
        self._padding_B = None if self._padding_B is None else self._padding_B[source_B]
        self.rows *= times

    def begin(self, tokens: int) -> None:
        end = self._end + tokens
        if end > self.length:
            raise CacheFullError(f"{end} tokens, where the cache was allocated for {self.length} of each sequence")
        self._check_context(end - (0 if self._padding_B is None else int(self._padding_B.min())))
        self._start, self._end = self._end, end
        every, rows = slice(None), slice(0, self.rows)
        self._new = self._storage.part((every, rows, every, slice(self._start, end)))
        self._filled = self._storage.part((every, rows, every, slice(0, end)))
        self._mask_BTS = self._mask()
        self._causal = tokens > 1 and self._mask_BTS is None
        self._turn_q = self._turn_k = None

    def attend_grouped(self, layer: int, qkv_BTKME: Tensor) -> Tensor:
        self._prepare_turns()
        if qkv_BTKME.shape[1] > 1 or qkv_BTKME.dtype != self.layout.dtype:
            return super().attend_grouped(layer, qkv_BTKME)
        qkv_BKME = qkv_BTKME[:, 0]
        qk_BKNE = qkv_BKME[:, :, :-1] if self._turn_k is None else self._turn_k(qkv_BKME[:, :, :-1])
        self._new.write(2 * layer, qk_BKNE[:, :, -1:])
        self._new.write(2 * layer + 1, qkv_BKME[:, :, -1:])
        keys_BKSE, values_BKSE = self._filled.read(2 * layer), self._filled.read(2 * layer + 1)
        mask_B1TS = None if self._mask_BTS is None else self._mask_BTS[:, None]
        # Queries that share keys are like queries of several tokens.
        mixed_BKGE = functional.scaled_dot_product_attention(qk_BKNE[:, :, :-1], keys_BKSE, values_BKSE, mask_B1TS)
        return mixed_BKGE.reshape(len(mixed_BKGE), 1, -1)

    def attend(self, layer: int, q_BKGTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
        self._prepare_turns()
        return super().attend(layer, q_BKGTE, k_BKTE, v_BKTE)

    def _prepare_turns(self) -> None:
        rotation = self.layout.rotation
        if self._turn_k is not None or rotation is None:
            return
        if self._turns is None:  # of all positions: a step has but to look them up
            context = self.layout.context or self.length
            self._turns = Turn.by(rotation.span(0, min(self.length, context)), self.layout.dtype)
        if self._padding_B is None:
            self._turn_q = self._turn_k = self._turns.at(slice(self._start, self._end))
        else:
            self._turn_k = self._turns.at(self.positions).at((slice(None), None))
            self._turn_q = self._turn_k.at((slice(None), None))

    def _mask(self) -> Tensor | None:
        """None where a token sees all that is cached, or the first tokens see those before them."""
        if self._padding_B is None and (self._start == 0 or self._end - self._start == 1):
            return None
        slots_S = torch.arange(self._end, device=self.layout.device)
        queries_T1 = slots_S[self._start :, None]
        mask_BTS = (slots_S <= queries_T1).unsqueeze(0)
        if self._padding_B is None:
            return mask_BTS
        # Padding sees itself: a query that sees nothing would be NaN.
        return mask_BTS & (slots_S >= self._padding_B[:, None, None]) | (slots_S == queries_T1)

    def update(self, layer: int, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        self._new.write(2 * layer, k_BKTE)
        self._new.write(2 * layer + 1, v_BKTE)
        return self._filled.read(2 * layer), self._filled.read(2 * layer + 1)
