"""Hugging Face data sets that are streamed."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from gradwire.trainer.config.range import Range
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.hub import check_installed, open_split, text_of
from gradwire.trainer.data.parts import check_context
from gradwire.trainer.data.tokenizer import BYTES, Tokenizer, load_tokenizer
from gradwire.trainer.data.walk import Walk
from gradwire.trainer.data.windows import WindowsInMemory, as_samples

_EMPTY = 100_000  # rows without text after which something must be wrong


class HuggingFaceStream:
    """A Hugging Face data set of text, streamed: nothing is downloaded or tokenized ahead of its use.

    Every rank walks the whole stream and keeps its own samples, so they are the same at any number of ranks;
    `data.workers` must be 0. A resumed run goes on from the data set's own saved position.

    Args:
        path: Name on the hub, or json, csv, parquet or text for local files.
        name: Which of the data set's configurations.
        data_files: Files, globs or URLs where `path` is a format.
        split: The split to train on.
        validation_split: The split for validation; null validates on nothing.
        validation_samples: Samples at the beginning of `validation_split` to validate on; they are held in memory.
        context: Tokens of a sample.
        text: The column that holds the text; each row is a document.
        tokenizer: `bytes`, or a Hugging Face tokenizer by folder or hub name.
        shuffle: Samples that are held in memory and shuffled together; 1 keeps the stream's order.

    Raises:
        DataError: an argument is out of range, a package is missing, or there is no such tokenizer. Training and
            validation part raise it when the data set cannot be opened.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        data_files: str | list[str] | None = None,
        split: str = "train",
        validation_split: str | None = None,
        validation_samples: Annotated[int, Range(ge=1)] = 1000,
        context: Annotated[int, Range(ge=1)] = 128,
        text: str = "text",
        tokenizer: str = BYTES,
        shuffle: Annotated[int, Range(ge=1)] = 1000,
    ) -> None:
        check_installed()
        for key, count in (("validation_samples", validation_samples), ("shuffle", shuffle)):
            if count < 1:
                raise DataError(f"{key} must be at least 1, found {count}")
        self.context = check_context(context)
        self._from = (path, name, data_files)
        self._splits = (split, validation_split)
        self._validation_samples = validation_samples
        self._text = text
        self._tokenizer = load_tokenizer(tokenizer)
        self._shuffle = shuffle
        self.vocabulary = self._tokenizer.vocabulary

    @cached_property
    def train(self) -> "StreamedWindows":
        """The training samples."""
        return StreamedWindows(lambda: self._reader(self._splits[0]), self._shuffle)

    @cached_property
    def validation(self) -> WindowsInMemory | None:
        """The validation samples, if there are any."""
        if self._splits[1] is None:
            return None
        reader = self._reader(self._splits[1])
        return WindowsInMemory(reader.first(self._validation_samples))

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(ids)

    def _reader(self, split: str) -> "WindowReader":
        rows = RowReader(open_split(*self._from, split, streaming=True))
        return WindowReader(rows, self._text, self._tokenizer, self.context)


class StreamedWindows:
    """Training samples of a stream.

    Args:
        open_reader: Opens the stream.
        shuffle: Samples that are shuffled together.
    """

    def __init__(self, open_reader: Callable[[], "WindowReader"], shuffle: int) -> None:
        self._open_reader = open_reader
        self._shuffle = shuffle

    def in_order(self, seed: int) -> Walk:
        """The samples by ordinal."""
        return Walk(self._open_reader(), seed, self._shuffle)


class RowReader:
    """The rows of a `datasets.IterableDataset`, over and over; each time around is an epoch of its own.

    Args:
        rows: The data set.
    """

    def __init__(self, rows: Any) -> None:
        self.epoch = 0
        self._rows = rows
        self._iterator: Iterator[Any] | None = None
        self._loaded: Any = None
        self.rewind()

    def read(self) -> Mapping[str, Any]:
        """The next row.

        Raises:
            DataError: there are none, or the stream broke off.
        """
        for _ in range(2):
            try:
                self._iterator = self._iterator or iter(self._rows)
                row: Mapping[str, Any] = next(self._iterator)
                return row
            except StopIteration:
                self._go_to(self.epoch + 1, None)
            except Exception as error:  # what the hub's client raises is not a closed set
                raise DataError(f"the stream broke off: {type(error).__name__}: {error}; resume the run") from error
        raise DataError("the streamed split holds no row: check the data set's name, files and split")

    def rewind(self) -> None:
        """Begin again at the first row."""
        self._go_to(0, None)

    def state_dict(self) -> dict[str, Any]:
        """Where the next row is: {"epoch", "rows" (the data set's own state; None at an epoch's beginning)}."""
        rows = self._loaded if self._iterator is None else self._rows.state_dict()
        return {"epoch": self.epoch, "rows": copy.deepcopy(rows)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where the next row was."""
        self._go_to(state["epoch"], copy.deepcopy(state["rows"]))

    def _go_to(self, epoch: int, state: Any) -> None:
        self.epoch = epoch
        self._iterator = None
        self._loaded = state
        self._rows.set_epoch(epoch)
        self._rows.load_state_dict(state or {})


class WindowReader:
    """The text of rows as windows of tokens, over the borders of documents.

    Args:
        rows: The rows.
        column: The column that holds text.
        tokenizer: Text to token ids.
        context: Tokens of a sample.
    """

    def __init__(self, rows: RowReader, column: str, tokenizer: Tokenizer, context: int) -> None:
        self._rows = rows
        self._column = column
        self._tokenizer = tokenizer
        self._context = context
        self._rest = np.empty(0, dtype=np.int64)  # tokens that were read and not yet handed out

    def read(self) -> dict[str, Tensor]:
        """The next sample: {"input_ids": int64 [context], "labels": int64 [context]}."""
        return {name: values[0] for name, values in as_samples(self._window()[None]).items()}

    def first(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The first windows of the first epoch, at most `count`: int64 [N, context + 1].

        Raises:
            DataError: the epoch is shorter than one window.
        """
        self.rewind()
        windows: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        while len(windows) < count:
            window = self._window()
            if self._rows.epoch > 0:
                break
            windows.append(window)
        if not windows:
            raise DataError(f"the split holds fewer than the {self._context + 1} tokens that one sample takes")
        return np.stack(windows)

    def rewind(self) -> None:
        """Begin again at the first row."""
        self._rows.rewind()
        self._rest = self._rest[:0]

    def state_dict(self) -> dict[str, Any]:
        """Where the next window is: {"rows" (where the next row is), "rest" (int64 [N])}."""
        return {"rows": self._rows.state_dict(), "rest": torch.from_numpy(self._rest.copy())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where the next window was."""
        self._rows.load_state_dict(state["rows"])
        self._rest = state["rest"].numpy().copy()

    def _window(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        parts, length = [self._rest], len(self._rest)
        empty = 0
        while length <= self._context:
            text = text_of(self._rows.read(), self._column)
            ids = [*self._tokenizer.encode(text.decode("utf-8", "surrogatepass")), *self._tokenizer.separator]
            empty = 0 if text else empty + 1
            if empty == _EMPTY:
                raise DataError(f"{_EMPTY} rows in a row have no text in column {self._column!r}")
            parts.append(np.array(ids, dtype=np.int64))
            length += len(ids)
        rest = np.concatenate(parts)
        self._rest = rest[self._context :]
        return rest[: self._context + 1]
