"""Where the thin factors of the matrices in a flat tensor lie, in the two buffers that are summed over ranks."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.comm.errors import CommError


@dataclass(frozen=True)
class Rows:
    """Consecutive whole rows of a parameter, seen as a matrix [first axis, all others], in a flat tensor.

    Attributes:
        name: The parameter.
        first: Index of the first of these rows in the parameter.
        offset: Where they begin in the flat tensor, elements.
        rows: How many.
        columns: Elements in each.
    """

    name: str
    first: int
    offset: int
    rows: int
    columns: int

    @property
    def key(self) -> str:
        """What the factor of these rows is kept under."""
        return f"{self.name}[{self.first}:{self.first + self.rows}]"

    @property
    def stop(self) -> int:
        """Where they end in the flat tensor."""
        return self.offset + self.rows * self.columns

    def within(self, start: int, stop: int) -> "Rows | None":
        """The rows that lie wholly in the elements [start, stop), with offsets counted from `start`; None without."""
        first = max(0, -((self.offset - start) // self.columns))
        last = min(self.rows, (stop - self.offset) // self.columns)
        if first >= last:
            return None
        offset = self.offset + first * self.columns - start
        return Rows(self.name, self.first + first, offset, last - first, self.columns)

    def matrix(self, flat: Tensor) -> Tensor:
        """Their view [rows, columns] in `flat`."""
        return flat[self.offset : self.stop].view(self.rows, self.columns)


class Factors:
    """What one layout needs: the two buffers that are summed, and the factors' views in them.

    Attributes:
        matrices: Rows that go as factors, ordered by their number, so that equal ones are orthonormalized together.
        first: [what is summed as it is | every P].
        second: Every Q.
        p: Of each matrix [rank, rows]; lying down, because the products are several times faster so.
        q: Of each matrix [rank, columns].
        p_by_shape: The same memory as `p`: stacks [matrices, rank, rows] of those with equally many rows.
    """

    def __init__(self, flat: Tensor, layout: Sequence[Rows], covered: Sequence[Rows], rank: int) -> None:
        self._left = list(_gaps(flat.numel(), covered, layout))
        self.matrices = sorted(covered, key=lambda rows: (rows.rows, rows.offset))
        left = sum(stop - start for start, stop in self._left)
        self.first = flat.new_empty(left + rank * sum(rows.rows for rows in self.matrices))
        self.second = flat.new_empty(rank * sum(rows.columns for rows in self.matrices))
        self._uncompressed, thin = self.first[:left], self.first[left:]
        self.p = [each.view(rank, -1) for each in torch.split(thin, [rank * rows.rows for rows in self.matrices])]
        self.q = [
            each.view(rank, -1) for each in torch.split(self.second, [rank * rows.columns for rows in self.matrices])
        ]
        counts = [(rows, len(list(equal))) for rows, equal in itertools.groupby(self.matrices, lambda rows: rows.rows)]
        stacks = torch.split(thin, [rank * rows * count for rows, count in counts])
        self.p_by_shape = [each.view(-1, rank, rows) for each, (rows, _) in zip(stacks, counts, strict=True)]

    def gather_left(self, flat: Tensor) -> None:
        """Take what is not compressed out of `flat`."""
        if self._left:
            torch.cat([flat[start:stop] for start, stop in self._left], out=self._uncompressed)

    def scatter_left(self, flat: Tensor) -> None:
        """Put it back."""
        parts = torch.split(self._uncompressed, [stop - start for start, stop in self._left])
        for (start, stop), part in zip(self._left, parts, strict=True):
            flat[start:stop] = part

    def write_error(self, flat: Tensor, error: Tensor) -> None:
        """`error` becomes `flat` minus P Qᵀ, where Q is still this rank's own."""
        for start, stop in self._left:
            error[start:stop] = 0.0
        for rows, p_RN, q_RC in zip(self.matrices, self.p, self.q, strict=True):
            torch.addmm(rows.matrix(flat), p_RN.T, q_RC, alpha=-1.0, out=rows.matrix(error))


def _gaps(count: int, covered: Sequence[Rows], layout: Sequence[Rows]) -> Iterator[tuple[int, int]]:
    """The ranges of [0, count) outside `covered`.

    Raises:
        CommError: Rows that overlap or lie outside.
    """
    end = 0
    for rows in sorted(layout, key=lambda rows: rows.offset):
        if rows.offset < end or rows.stop > count:
            raise CommError(f"{rows.key} lies at {rows.offset}:{rows.stop}; expected between {end} and {count}")
        end = rows.stop
    bounds = sorted((rows.offset, rows.stop) for rows in covered)
    for start, stop in zip([0, *(stop for _, stop in bounds)], [*(start for start, _ in bounds), count], strict=True):
        if start < stop:
            yield start, stop
