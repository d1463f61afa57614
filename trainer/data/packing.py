"""Documents packed into full contexts, none of which sees another.

A packed file is a token file of rows of `context` tokens. Each token is stored with two marks, as
`4·id + 2·learned + first`: whether it is a target, and whether a document begins with it. The rest of a row that no
document fits into is one of its own, of which nothing is learned.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.trainer.data.order import Ordinals
from gradwire.trainer.data.token_file import TokenFile
from gradwire.trainer.losses import IGNORED

MARKS = 4  # values a token takes
_LEARNED, _FIRST = 2, 1
Document = np.ndarray[Any, np.dtype[np.uint32]]


def marked(ids: Sequence[int], learned: Sequence[bool]) -> Document:
    """A document's tokens with their marks: uint32 [number of tokens]."""
    values = np.array(ids, dtype=np.uint32) * MARKS + np.array(learned, dtype=np.uint32) * _LEARNED
    values[0] += _FIRST
    return values


def has_targets(document: Document) -> bool:
    """Whether anything of a document is learned: its first token never is, as nothing comes before it."""
    return bool((document[1:] & _LEARNED).any())


def pack(lengths: Sequence[int], context: int) -> list[list[int]]:
    """Which documents share a context: best fit, the longest first (Johnson 1974), by number where equally long.

    Args:
        lengths: Tokens of each document, 1 … context.
        context: Tokens of a context.
    """
    rows: list[list[int]] = []
    fitting: dict[int, list[int]] = {}  # rows by the room they have left
    rooms: list[int] = []  # the keys of that, sorted
    for number in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        place = bisect_left(rooms, lengths[number])
        if place == len(rooms):
            row, room = len(rows), context
            rows.append([])
        else:
            room = rooms[place]
            row = fitting[room].pop()
            if not fitting[room]:
                del fitting[room], rooms[place]
        rows[row].append(number)
        left = room - lengths[number]
        if left:
            if left not in fitting:
                insort(rooms, left)
                fitting[left] = []
            fitting[left].append(row)
    return rows


def packed(documents: Sequence[Document], context: int, padding: int) -> Iterator[Document]:
    """The rows of a packed file: uint32 [context] each.

    Args:
        documents: As `marked` gives them, none longer than the context.
        context: Tokens of a row.
        padding: The token id that fills what is left of one.
    """
    for row in pack([len(document) for document in documents], context):
        room = context - sum(len(documents[number]) for number in row)
        rest = marked([padding] * room, [False] * room) if room else np.empty(0, dtype=np.uint32)
        yield np.concatenate([*(documents[number] for number in row), rest])


class PackedDocuments:
    """The samples of a stretch of a packed file: sample i is its row i.

    Args:
        file: The rows.
        context: Tokens of a row.
        start: First row of the stretch.
        count: Rows of it.
    """

    def __init__(self, file: TokenFile, context: int, start: int, count: int) -> None:
        self._file = file
        self._context = context
        self._start = start
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: values[0] for name, values in self.gather(np.array([index], dtype=np.int64)).items()}

    def gather(self, indices: Ordinals) -> dict[str, Tensor]:
        """The rows at `indices` (int64 [B]): {"input_ids", "labels", "positions"}, int64 [B, context] each.

        Labels are the next tokens where those are learned, −100 elsewhere. Positions count within each document.

        Raises:
            IndexError: there is no such row.
            DataError: the file has shrunk.
        """
        if indices.size and (indices.min() < 0 or indices.max() >= self._count):
            raise IndexError(f"rows are numbered 0 … {self._count - 1}, found {indices.min()} to {indices.max()}")
        starts = ((self._start + indices) * self._context).tolist()
        values = self._file.read(starts, self._context).astype(np.int64)
        ids, first = values // MARKS, values & _FIRST == _FIRST
        labels = np.full_like(ids, IGNORED)
        targets = (values[:, 1:] & _LEARNED == _LEARNED) & ~first[:, 1:]
        labels[:, :-1][targets] = ids[:, 1:][targets]
        places = np.broadcast_to(np.arange(self._context), ids.shape)
        positions = places - np.maximum.accumulate(np.where(first, places, 0), axis=1)
        arrays = {"input_ids": ids, "labels": labels, "positions": positions}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
