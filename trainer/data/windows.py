"""Samples of language modeling: windows of a token file."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.order import Ordinals
from gradwire.trainer.data.token_file import TokenFile


class TokenWindows:
    """The samples of a stretch of a token file: window i is its tokens i·context … i·context + context.

    Args:
        file: The tokens.
        context: Tokens of a sample; its labels are the same tokens shifted by one.
        start: First token of the stretch.
        stop: The token after its last; None takes the file's end.

    Raises:
        DataError: the stretch is shorter than one window.
    """

    def __init__(self, file: TokenFile, context: int, start: int = 0, stop: int | None = None) -> None:
        self._file = file
        self._context = context
        self._start = start
        stop = len(file) if stop is None else stop
        self._count = max(stop - start - 1, 0) // context
        if self._count < 1:
            where = "" if (start, stop) == (0, len(file)) else f" between {start} and {stop}"
            raise DataError(
                f"{file.path} holds {max(stop - start, 0)} tokens{where}, fewer than the {context + 1} that one sample "
                f"of context {context} takes: give more data, lower data.context, or change the validation fraction"
            )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: values[0] for name, values in self.gather(np.array([index], dtype=np.int64)).items()}

    def gather(self, indices: Ordinals) -> dict[str, Tensor]:
        """{"input_ids": int64 [B, context], "labels": int64 [B, context]} of the windows at `indices` (int64 [B]).

        Raises:
            IndexError: there is no such window.
            DataError: the file has shrunk, or holds an id outside the vocabulary.
        """
        if indices.size and (indices.min() < 0 or indices.max() >= self._count):
            raise IndexError(f"windows are numbered 0 … {self._count - 1}, found {indices.min()} to {indices.max()}")
        starts = (self._start + indices * self._context).tolist()
        return as_samples(self._file.read(starts, self._context + 1))


class WindowsInMemory:
    """Windows that were read already.

    Args:
        windows: int64 [N, context + 1].
    """

    def __init__(self, windows: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._windows = windows

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: values[0] for name, values in self.gather(np.array([index], dtype=np.int64)).items()}

    def gather(self, indices: Ordinals) -> dict[str, Tensor]:
        """{"input_ids": int64 [B, context], "labels": int64 [B, context]} of the windows at `indices` (int64 [B])."""
        return as_samples(self._windows[indices])


def as_samples(windows: np.ndarray[Any, np.dtype[Any]]) -> dict[str, Tensor]:
    """Token windows [B, context + 1] as inputs and labels, int64 [B, context] each."""
    return {
        "input_ids": torch.from_numpy(windows[:, :-1].astype(np.int64)),
        "labels": torch.from_numpy(windows[:, 1:].astype(np.int64)),
    }
