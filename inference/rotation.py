"""Rotary positions (Su 2021, 2104.09864).

Shapes: T tokens, E head width.
"""

from typing import Any

import torch
from torch import Tensor


def rotate(x_TE: Tensor, rotation_2TE: Tensor) -> Tensor:
    """Turn pairs (first half, second half) of each head [..., T, E] by the angle of their position.

    Args:
        x_TE: Queries or keys.
        rotation_2TE: Cosines and sines [2, T, E/2], or with axes between that suit those of `x_TE`.
    """
    cos_TE, sin_TE = rotation_2TE.to(x_TE.dtype)
    first, second = x_TE.chunk(2, -1)
    return torch.cat([first * cos_TE - second * sin_TE, first * sin_TE + second * cos_TE], -1)


class Turn:
    """As `rotate`, laid out so that it takes few operations in each layer.

    Args:
        cos_TE: Cosines [..., T, E], of both halves.
        sin_TE: Sines likewise, negative in the first half.
    """

    def __init__(self, cos_TE: Tensor, sin_TE: Tensor) -> None:
        self._cos_TE, self._sin_TE = cos_TE, sin_TE

    @classmethod
    def by(cls, rotation_2TE: Tensor, dtype: torch.dtype) -> "Turn":
        """By cosines and sines [2, ..., T, E/2].

        Args:
            rotation_2TE: As for `rotate`.
            dtype: Of what will be turned, usually.
        """
        cos_TE, sin_TE = rotation_2TE.to(dtype)
        return cls(torch.cat([cos_TE, cos_TE], -1), torch.cat([-sin_TE, sin_TE], -1))

    def at(self, index: Any) -> "Turn":
        """The turns of some of the tokens."""
        return Turn(self._cos_TE[index], self._sin_TE[index])

    def __call__(self, x_TE: Tensor) -> Tensor:
        """Turned queries or keys [..., T, E]."""
        swapped = x_TE.roll(x_TE.shape[-1] // 2, -1)
        if x_TE.dtype != self._cos_TE.dtype:
            return (x_TE * self._cos_TE + swapped * self._sin_TE).to(x_TE.dtype)
        return torch.addcmul(x_TE * self._cos_TE, swapped, self._sin_TE)


class Rotation:
    """The angles of any position: position × frequency.

    Args:
        frequencies_E: Radians by which each pair turns from one position to the next [E/2].
        table_2TE: Cosines and sines [2, T, E/2] of the first positions as the model itself computes them, so that
            cached and uncached keys are the same bits; other positions are computed in double precision, where a stream
            of any length keeps the distances between its tokens.
    """

    def __init__(self, frequencies_E: Tensor, table_2TE: Tensor | None = None) -> None:
        self._frequencies_E = frequencies_E.double()
        self._table_2TE = table_2TE

    def span(self, start: int, tokens: int) -> Tensor:
        """Cosines and sines [2, T, E/2] of successive positions."""
        if self._table_2TE is not None and start + tokens <= self._table_2TE.shape[1]:
            return self._table_2TE[:, start : start + tokens]
        return self.at(torch.arange(start, start + tokens, device=self._frequencies_E.device))

    def at(self, positions: Tensor) -> Tensor:
        """Cosines and sines [2, ..., E/2] of positions [...], which may be negative; single precision."""
        angles = positions.double().unsqueeze(-1) * self._frequencies_E
        return torch.stack([angles.cos(), angles.sin()]).float()

    def known(self, positions: Tensor) -> Tensor:
        """As `at`, for positions that the table has, where there is one."""
        return self.at(positions) if self._table_2TE is None else self._table_2TE[:, positions]
