"""Token files: a flat array of unsigned integers (little-endian), read window by window and written whole."""

import contextlib
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.token_info import WIDTHS, TokenInfo, Width, narrowest

Ids = np.ndarray[Any, np.dtype[Any]]


class TokenFile:
    """Reads windows of a token file, each from the disk when it is asked for.

    Windows are read with `pread`, not through a memory map: the pages of a map that has been touched all over would
    count as the process's memory. The operating system caches the file just the same.

    Args:
        path: The file.
        dtype: Type of its integers; None takes it from the description beside it.
        vocabulary: All ids must be below this; None takes it from the description, or checks nothing without one.

    Raises:
        DataError: the file is missing, empty, or not of that type; or its description is missing and needed.
    """

    def __init__(self, path: str | Path, dtype: Width | None = None, vocabulary: int | None = None) -> None:
        self.path = Path(path)
        self.info = TokenInfo.read(self.path)
        self.dtype = _chosen_dtype(self.path, dtype, self.info)
        described = None if self.info is None else self.info.vocabulary
        self.vocabulary: int | None = described if vocabulary is None else vocabulary
        self._type = np.dtype(self.dtype).newbyteorder("<")
        size = _size_of(self.path)
        self.tokens, odd = divmod(size, self._type.itemsize)
        if odd or (self.info is not None and self.info.tokens != self.tokens):
            expected = f"{self.info.tokens} tokens" if self.info else "a whole number of tokens"
            raise DataError(
                f"{self.path} holds {size} bytes, which is {size / self._type.itemsize:g} tokens of {self.dtype}; "
                f"expected {expected}: the file is cut short or of another dtype"
            )
        self._descriptor: int | None = None

    def __len__(self) -> int:
        return self.tokens

    def __reduce__(self) -> tuple[type["TokenFile"], tuple[Any, ...]]:
        return TokenFile, (self.path, self.dtype, self.vocabulary)  # a descriptor is one process's own

    def read(self, starts: Iterable[int], length: int) -> Ids:
        """The windows of `length` tokens at these positions: [number of starts, length], in the file's type.

        Raises:
            DataError: the file has shrunk, or holds an id outside the vocabulary.
        """
        starts = list(starts)
        windows = np.empty((len(starts), length), dtype=self._type)
        descriptor = self._open()
        for window, start in zip(windows, starts, strict=True):
            got = os.preadv(descriptor, [window], start * self._type.itemsize)
            if got != window.nbytes:
                raise DataError(
                    f"{self.path} ends within the {length} tokens at {start}, though it held {self.tokens} tokens "
                    "when it was opened: do not change data while a run reads it"
                )
        if self.vocabulary is not None and windows.size and windows.max() >= self.vocabulary:
            self._refuse(windows, starts)
        return windows

    def _refuse(self, windows: Ids, starts: list[int]) -> None:
        row, column = np.argwhere(windows >= self.vocabulary)[0]
        raise DataError(
            f"{self.path} holds token id {windows[row, column]} at position {starts[row] + column}, expected ids below "
            f"the vocabulary of {self.vocabulary}: the file was written with another tokenizer or another dtype than "
            f"{self.dtype}; tokenize it again or correct data.vocabulary"
        )

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)
        return self._descriptor


def write_tokens(path: Path, pieces: Iterable[Ids], vocabulary: int, tokenizer: str) -> TokenInfo:
    """Write a token file and its description, which appears last: with it, the file is whole.

    Args:
        path: Where to; a file that is there is replaced.
        pieces: Arrays of ids, one after another.
        vocabulary: All ids are below this.
        tokenizer: Name of the tokenizer.

    Raises:
        DataError: there are no ids at all, or the file cannot be written.
    """
    width = narrowest(vocabulary)
    layout = np.dtype(width).newbyteorder("<")
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    tokens = 0
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece.astype(layout, copy=False).tobytes())
                tokens += piece.size
            file.flush()
            os.fsync(file.fileno())
        if tokens == 0:
            raise DataError(f"there is nothing to write to {path}: the text is empty")
        info = TokenInfo(width, tokens, vocabulary, tokenizer)
        TokenInfo.path_for(path).unlink(missing_ok=True)
        temporary.replace(path)
        info.write(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return info


def _size_of(path: Path) -> int:
    try:
        if not path.is_file():
            raise DataError(
                f"there is no token file {path}: check the path, or write one with gradwire tokenize SRC DST"
            )
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if size == 0:
        raise DataError(f"{path} is empty: expected tokens; write it with gradwire tokenize SRC DST")
    return size


def _chosen_dtype(path: Path, given: Width | None, info: TokenInfo | None) -> Width:
    if given is not None and given not in WIDTHS:
        raise DataError(f"dtype must be one of {', '.join(WIDTHS)}, found {given!r}")
    if info is None:
        if given is None:
            _size_of(path)  # a missing file is the better message
            raise DataError(
                f"the type of the tokens in {path} is unknown: set data.dtype to one of {', '.join(WIDTHS)}"
                f", or have {TokenInfo.path_for(path).name} beside it, as gradwire tokenize writes it"
            )
        return given
    if given is not None and given != info.dtype:
        raise DataError(
            f"{path} holds {info.dtype} according to {TokenInfo.path_for(path).name}, found dtype={given}: "
            "leave dtype out"
        )
    return info.dtype


def is_whole(path: Path) -> bool:
    """Whether there is a token file with its description at `path`, neither cut short nor damaged."""
    try:
        return TokenInfo.read(path) is not None and len(TokenFile(path)) > 0
    except DataError:
        return False
