"""Sequences whose keys and values lie in blocks of a shared pool (Kwon 2023, 2309.06180).

Shapes: B sequences, K key/value heads, T new tokens, S cached ones, N blocks of a sequence, P tokens of a block, E head
width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.inference.caches.cache import Cache, check_padding
from gradwire.inference.caches.pool import Pool, PoolFullError, Table


class Paged(Cache):
    """A batch of sequences in a pool. Their blocks are gathered for each step, behind a mask.

    Args:
        pool: Where they lie; other batches may use it too.
        tables: The sequences, which may have tokens already.
    """

    def __init__(self, pool: Pool, tables: Sequence[Table]) -> None:
        super().__init__(pool.layout, len(tables))
        self.pool = pool
        self.tables = list(tables)
        self._padding = [0] * len(tables)

    @property
    def nbytes(self) -> int:
        return self.pool.nbytes

    @property
    def positions(self) -> Tensor:
        return self._positions_BT.clamp_min(0)

    def reset(self, rows: int) -> None:
        for table in self.tables:
            table.release()
        self.tables = [Table(self.pool) for _ in range(rows)]
        self._padding = [0] * rows
        self.rows = rows

    def pad(self, padding_B: Tensor) -> None:
        """As everywhere, but padding may also stand before tokens that follow others: it takes no room."""
        check_padding(padding_B, self.rows)
        self._padding = padding_B.tolist()

    def repeat(self, times: int) -> None:
        originals = self.tables
        self.tables = [table if not copy else table.fork() for table in originals for copy in range(times)]
        self._padding = [0] * len(self.tables)
        self.rows = len(self.tables)

    def begin(self, tokens: int) -> None:
        counts = [tokens - padding for padding in self._padding]
        starts = [table.tokens for table in self.tables]
        self._check_context(max(start + count for start, count in zip(starts, counts, strict=True)))
        self._reserve(counts)
        self._place(tokens, starts)
        self._padding = [0] * self.rows
        if self.layout.rotation is not None:
            self._turn_to(self.layout.rotation.known(self.positions))

    def _reserve(self, counts: list[int]) -> None:
        reserved: list[tuple[Table, int]] = []
        try:
            for table, count in zip(self.tables, counts, strict=True):
                table.reserve(count)
                reserved.append((table, count))
        except PoolFullError:
            for table, count in reserved:  # whoever makes room can begin again
                table.tokens -= count
            raise

    def _place(self, tokens: int, starts: list[int]) -> None:
        """Where new tokens go, which blocks are read, and who sees what."""
        device, block = self.layout.device, self.pool.block
        longest = max(len(table.blocks) for table in self.tables)
        blocks = [table.blocks + [0] * (longest - len(table.blocks)) for table in self.tables]
        self._blocks_BN = torch.tensor(blocks, device=device)
        first_B = torch.tensor(starts, device=device) - torch.tensor(self._padding, device=device)
        self._positions_BT = first_B[:, None] + torch.arange(tokens, device=device)
        self._new = (self._positions_BT >= torch.tensor(starts, device=device)[:, None]).nonzero(as_tuple=True)
        positions = self._positions_BT[self._new]
        self._slot = (self._blocks_BN[self._new[0], positions // block], positions % block)
        self._longest = max(table.tokens for table in self.tables)
        slots_S = torch.arange(self._longest, device=device)
        even = tokens == 1 and min(starts) == max(starts)
        # Padding sees a first token, whatever that is: a query that sees nothing would be NaN.
        self._mask_BTS = None if even else slots_S <= self._positions_BT.clamp_min(0)[..., None]

    def update(self, layer: int, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        row, token = self._new
        found = []
        for storage, new in ((self.pool.keys[layer], k_BKTE), (self.pool.values[layer], v_BKTE)):
            storage.write(self._slot, new[row, :, token])
            found.append(storage.read(self._blocks_BN).flatten(1, 2)[:, : self._longest].transpose(1, 2))
        return found[0], found[1]
