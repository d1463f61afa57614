"""Sequences of a pool side by side in one row, each with as many new tokens as it has: nothing is padded.

Shapes: N new tokens of all sequences, K key/value heads, G query heads that share one, T new tokens of a sequence, S
cached ones, B sequences with one new token each, E head width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.inference.attention import attention
from gradwire.inference.caches.cache import Cache
from gradwire.inference.caches.pool import Pool, Table
from gradwire.inference.caches.storage import Storage
from gradwire.inference.errors import InferenceError


@dataclass(frozen=True)
class _Group:
    """Tokens that attend together: one of each of several sequences, or several of one."""

    first: int
    end: int
    blocks: Tensor  # [B, blocks of the longest]
    seen: int
    mask: Tensor | None  # [B, T, S]


class Packed(Cache):
    """One row with the new tokens of many sequences, for models whose layout is `packed`.

    All that works token by token works on all of them at once; attention, sequence by sequence.

    Args:
        pool: Where they lie.
        tables: The sequences; those with one new token come first.
        counts: New tokens of each.

    Raises:
        InferenceError: the counts do not fit the sequences, or their order is another.
    """

    def __init__(self, pool: Pool, tables: Sequence[Table], counts: Sequence[int]) -> None:
        super().__init__(pool.layout, 1)
        if len(tables) != len(counts) or not tables or min(counts) < 1 or _singles(counts) < counts.count(1):
            raise InferenceError("every sequence needs at least one new token, and those with just one come first")
        self._pool, self._tables, self._counts = pool, list(tables), list(counts)

    @property
    def nbytes(self) -> int:
        return self._pool.nbytes

    @property
    def positions(self) -> Tensor:
        return self._positions_N.unsqueeze(0)

    def begin(self, tokens: int) -> None:
        if tokens != sum(self._counts):
            raise InferenceError(f"the sequences have {sum(self._counts)} new tokens together, found {tokens}")
        starts = [table.tokens for table in self._tables]
        self._check_context(max(start + count for start, count in zip(starts, self._counts, strict=True)))
        for table, count in zip(self._tables, self._counts, strict=True):
            table.reserve(count)
        device = self.layout.device
        places = [start + new for start, count in zip(starts, self._counts, strict=True) for new in range(count)]
        self._positions_N = torch.tensor(places, device=device)
        owners = [row for row, count in enumerate(self._counts) for _ in range(count)]
        size = self._pool.block
        blocks = [self._tables[row].blocks[place // size] for row, place in zip(owners, places, strict=True)]
        self._slots = (torch.tensor(blocks, device=device), self._positions_N % size)
        self._groups = list(self._grouped())
        self._ends = torch.tensor(self._counts, device=device).cumsum(0) - 1
        if self.layout.rotation is not None:
            self._turn_to(self.layout.rotation.known(self._positions_N))

    def _grouped(self) -> Iterator[_Group]:
        singles = _singles(self._counts)
        if singles:
            yield self._group(0, 0, singles)
        first = singles
        for row, count in enumerate(self._counts[singles:], singles):
            yield self._group(first, row, row + 1)
            first += count

    def _group(self, first: int, row: int, end_row: int) -> _Group:
        tables, device = self._tables[row:end_row], self.layout.device
        longest = max(len(table.blocks) for table in tables)
        blocks = [table.blocks + [0] * (longest - len(table.blocks)) for table in tables]
        end, seen = first + sum(self._counts[row:end_row]), max(table.tokens for table in tables)
        even = end - first == len(tables) and min(table.tokens for table in tables) == seen
        positions_BT = self._positions_N[first:end].view(len(tables), -1)
        mask_BTS = None if even else torch.arange(seen, device=device) <= positions_BT[..., None]
        return _Group(first, end, torch.tensor(blocks, device=device), seen, mask_BTS)

    def attend_grouped(self, layer: int, qkv_BTKME: Tensor) -> Tensor:
        if self._turn_q is None or qkv_BTKME.dtype != self.layout.dtype:
            return super().attend_grouped(layer, qkv_BTKME)
        qkv_KMNE = qkv_BTKME[0].permute(1, 2, 0, 3)
        qk_KMNE = self._turn_q(qkv_KMNE[:, :-1])
        mixed_KGNE = self._attend(layer, qk_KMNE[:, :-1], qk_KMNE[:, -1], qkv_KMNE[:, -1])
        return mixed_KGNE.permute(2, 0, 1, 3).flatten(1).unsqueeze(0)

    def attend(self, layer: int, q_BKGTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
        """As everywhere; the one row's tokens are those of all sequences."""
        if self._turn_q is not None and self._turn_k is not None:
            q_BKGTE, k_BKTE = self._turn_q(q_BKGTE), self._turn_k(k_BKTE)
        return self._attend(layer, q_BKGTE[0], k_BKTE[0], v_BKTE[0]).unsqueeze(0)

    def _attend(self, layer: int, q_KGNE: Tensor, k_KNE: Tensor, v_KNE: Tensor) -> Tensor:
        """What is stored and mixed, queries and keys turned."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        keys.write(self._slots, k_KNE.transpose(0, 1))
        values.write(self._slots, v_KNE.transpose(0, 1))
        mixed = [self._mix(group, q_KGNE[:, :, group.first : group.end], keys, values) for group in self._groups]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, 2)

    def _mix(self, group: _Group, q_KGNE: Tensor, keys: Storage, values: Storage) -> Tensor:
        """What a group's queries [K, G, N, E] see of their own sequences, likewise."""
        q_BKGTE = q_KGNE.view(*q_KGNE.shape[:2], len(group.blocks), -1, q_KGNE.shape[-1]).permute(2, 0, 1, 3, 4)
        keys_BKSE, values_BKSE = (
            each.read(group.blocks).flatten(1, 2)[:, : group.seen].transpose(1, 2).to(q_KGNE.dtype)
            for each in (keys, values)
        )
        mixed_BKGTE = attention(q_BKGTE, keys_BKSE, values_BKSE, group.mask, causal=False)
        return mixed_BKGTE.permute(1, 2, 0, 3, 4).flatten(2, 3)

    def wanted(self, x_BTD: Tensor) -> Tensor:
        """The last token of each sequence [1, sequences, D]."""
        return x_BTD[:, self._ends]

    def update(self, layer: int, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        raise InferenceError("models that compute attention themselves cannot have sequences side by side")

    def reset(self, rows: int) -> None:
        raise InferenceError("a packed row is for one step")

    def pad(self, padding_B: Tensor) -> None:
        raise InferenceError("a packed row has no padding")

    def repeat(self, times: int) -> None:
        raise InferenceError("a packed row is for one step")


def _singles(counts: Sequence[int]) -> int:
    """Sequences with one new token before the first that has more."""
    return next((row for row, count in enumerate(counts) if count > 1), len(counts))
