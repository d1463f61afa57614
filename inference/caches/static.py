"""A cache whose shapes never change, for torch.compile and CUDA graphs.

Shapes: B sequences, K key/value heads, T new tokens, S allocated ones, E head width.
"""

from typing import Any

import torch
from torch import Tensor

from gradwire.inference.caches.cache import Cache, check_padding, check_rows, check_untouched, repeated
from gradwire.inference.caches.storage import MakeStorage, Plain
from gradwire.inference.errors import CacheFullError
from gradwire.inference.model import Layout


class Static(Cache):
    """As `Contiguous`, but the count of tokens lies on the device and all memory is read, behind a mask.

    So a step of one token has the same shapes and addresses each time: torch.compile compiles it once, and a CUDA
    graph of it can be replayed. The price is that a step costs as much as one with a full cache, unless who drives it
    says by `slots_S` how much is read. Within a graph nothing can be raised: who drives it counts the tokens.

    Args:
        layout: What the model keeps of each token.
        rows: Most sequences; repeat and reset leave their number.
        length: Most tokens of each, padding included.
        storage: How keys and values lie in memory.

    Attributes:
        slots_S: Numbers of the slots that are read, from 0; all of them at first.
    """

    def __init__(self, layout: Layout, rows: int, length: int, storage: MakeStorage = Plain) -> None:
        super().__init__(layout, rows)
        shape = (rows, layout.kv_heads, length, layout.head_width)
        self.length = length
        self.most_rows = rows
        self._keys = [storage(shape, layout.dtype, layout.device) for _ in range(layout.layers)]
        self._values = [storage(shape, layout.dtype, layout.device) for _ in range(layout.layers)]
        self.slots_S = torch.arange(length, device=layout.device)
        self._end = torch.zeros((), dtype=torch.int64, device=layout.device)
        self._padding_B = torch.zeros(rows, dtype=torch.int64, device=layout.device)
        self._new_T = self.slots_S[:0]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (*self._keys, *self._values))

    @property
    def positions(self) -> Tensor:
        return (self._new_T - self._padding_B[: self.rows, None]).clamp_min(0)

    def reset(self, rows: int) -> None:
        check_rows(rows, self.most_rows)
        self.rows = rows
        self._end.zero_()
        self._padding_B.zero_()

    def pad(self, padding_B: Tensor) -> None:
        check_untouched(int(self._end))
        check_padding(padding_B, self.rows)
        self._padding_B[: self.rows] = padding_B.to(self._padding_B.device)

    def repeat(self, times: int) -> None:
        check_rows(self.rows * times, self.most_rows)
        source_B = repeated(self.rows, times, self.layout.device)
        for each in (*self._keys, *self._values):
            each.copy(slice(0, len(source_B)), source_B)
        self._padding_B[: len(source_B)] = self._padding_B[source_B]
        self.rows *= times

    @property
    def tokens(self) -> int:
        """Tokens so far, padding included."""
        return int(self._end)

    def check_room(self, tokens: int) -> None:
        """Refuse so many more tokens if there is no room for them.

        Raises:
            CacheFullError: there is none.
        """
        end = self.tokens + tokens
        if end > self.length:
            raise CacheFullError(f"{end} tokens, where the cache was allocated for {self.length} of each sequence")

    def filled(self, tokens: int) -> Tensor:
        """Numbers of the slots that are filled when so many more tokens have come, for which there is room."""
        end = self.tokens + tokens
        known: Any = torch._check  # what a compiler cannot see
        known(end >= 1)
        known(end <= self.length)
        return self.slots_S[:end]

    def begin(self, tokens: int) -> None:
        self._new_T = torch.arange(tokens, device=self.layout.device) + self._end
        self._end += tokens
        seen_TS = self.slots_S <= self._new_T[:, None]
        own_TS = self.slots_S == self._new_T[:, None]
        self._mask_BTS = seen_TS & (self.slots_S >= self._padding_B[: self.rows, None, None]) | own_TS
        if self.layout.rotation is not None:
            self._turn_to(self.layout.rotation.known(self.positions))

    def update(self, layer: int, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        new = (slice(0, self.rows), slice(None), self._new_T)
        self._keys[layer].write(new, k_BKTE)
        self._values[layer].write(new, v_BKTE)
        read = (slice(0, self.rows), slice(None), slice(0, len(self.slots_S)))
        return self._keys[layer].read(read), self._values[layer].read(read)
