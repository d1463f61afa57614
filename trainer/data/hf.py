"""Hugging Face data sets that are read by index."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor

from gradwire.trainer.config.range import Range
from gradwire.trainer.data.cache import cached
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.hub import check_installed, open_split, text_of
from gradwire.trainer.data.order import Ordinals
from gradwire.trainer.data.parts import check_context, check_fraction, split_tail
from gradwire.trainer.data.token_file import TokenFile, is_whole
from gradwire.trainer.data.tokenize import write_documents
from gradwire.trainer.data.tokenizer import BYTES, Tokenizer, load_tokenizer
from gradwire.trainer.data.windows import TokenWindows

_LAYOUT = "1"  # changes when the same rows would be made into other tokens


class HuggingFace:
    """A Hugging Face data set of text, tokenized once into the user's cache folder.

    Args:
        path: Name on the hub, or json, csv, parquet or text for local files.
        name: Which of the data set's configurations.
        data_files: Files, globs or URLs where `path` is a format.
        split: The split to train on.
        validation_split: The split for validation; null keeps the last part of `split`.
        context: Tokens of a sample.
        text: The column that holds the text; each row is a document.
        tokenizer: `bytes`, or a Hugging Face tokenizer by folder or hub name.
        validation_fraction: Share of the tokens, at the end, that is kept for validation without `validation_split`.

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
        context: Annotated[int, Range(ge=1)] = 128,
        text: str = "text",
        tokenizer: str = BYTES,
        validation_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.05,
    ) -> None:
        check_installed()
        self.context = check_context(context)
        self._fraction = 0.0 if validation_split is not None else check_fraction(validation_fraction)
        self._from = (path, name, data_files)
        self._splits = (split, validation_split)
        self._text = text
        self._tokenizer = load_tokenizer(tokenizer)
        self.vocabulary = self._tokenizer.vocabulary

    @property
    def train(self) -> TokenWindows:
        """The training samples."""
        return self._split[0]

    @cached_property
    def validation(self) -> TokenWindows | None:
        """The validation samples, if there are any."""
        if self._splits[1] is None:
            return self._split[1]
        return TokenWindows(self._tokens(self._splits[1]), self.context)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(ids)

    @cached_property
    def _split(self) -> tuple[TokenWindows, TokenWindows | None]:
        return split_tail(self._tokens(self._splits[0]), self.context, self._fraction)

    def _tokens(self, split: str) -> TokenFile:
        rows = open_split(*self._from, split, streaming=False)
        return _tokenized(rows, self._text, self._tokenizer)


class HuggingFaceRows:
    """A Hugging Face data set whose rows are the samples: each batch holds the columns as tensors.

    Args:
        path: Name on the hub, or json, csv, parquet for local files.
        name: Which of the data set's configurations.
        data_files: Files, globs or URLs where `path` is a format.
        split: The split to train on.
        validation_split: The split for validation; null keeps the last part of `split`.
        columns: Columns to use; null uses all.
        context: Tokens of a sample, where the samples are sequences.
        validation_fraction: Share of the rows, at the end, that is kept for validation without `validation_split`.

    Raises:
        DataError: an argument is out of range or a package is missing. Training and validation part raise it when the
            data set cannot be opened.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        data_files: str | list[str] | None = None,
        split: str = "train",
        validation_split: str | None = None,
        columns: list[str] | None = None,
        context: Annotated[int, Range(ge=1)] = 1,
        validation_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.05,
    ) -> None:
        check_installed()
        self.context = check_context(context)
        self._fraction = 0.0 if validation_split is not None else check_fraction(validation_fraction)
        self._from = (path, name, data_files)
        self._splits = (split, validation_split)
        self._columns = columns

    @property
    def train(self) -> "Rows":
        """The training rows."""
        return self._split[0]

    @cached_property
    def validation(self) -> "Rows | None":
        """The validation rows, if there are any."""
        return self._split[1] if self._splits[1] is None else Rows(self._open(self._splits[1]))

    @cached_property
    def _split(self) -> tuple["Rows", "Rows | None"]:
        rows = self._open(self._splits[0])
        cut = len(rows) - round(len(rows) * self._fraction)
        validation = Rows(rows.select(range(cut, len(rows)))) if cut < len(rows) else None
        return Rows(rows.select(range(cut))), validation

    def _open(self, split: str) -> Any:
        rows = open_split(*self._from, split, streaming=False)
        if self._columns is None:
            return rows
        missing = [column for column in self._columns if column not in rows.column_names]
        if missing:
            raise DataError(f"the data set has no column {missing[0]!r}: there are {', '.join(rows.column_names)}")
        return rows.select_columns(self._columns)


class Rows:
    """The rows of a `datasets.Dataset` as tensors.

    Args:
        rows: The data set.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows.with_format("torch")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = self._rows[index]
        return row

    def gather(self, indices: Ordinals) -> dict[str, Any]:
        """The columns of the rows at `indices` (int64 [B]): tensors [B, …], or lists of text.

        Raises:
            DataError: the rows of a column have different shapes.
        """
        batch: dict[str, Any] = self._rows[indices.tolist()]
        for column, values in batch.items():
            if isinstance(values, list) and values and isinstance(values[0], Tensor | list):
                raise DataError(
                    f"the rows of column {column!r} have different lengths and do not fit into one batch: leave it out "
                    "with data.columns, or pad it when the data set is made"
                )
        return batch


def _tokenized(rows: Any, column: str, tokenizer: Tokenizer) -> TokenFile:
    """The rows' text as one token file in the cache."""
    if column not in rows.column_names:
        raise DataError(
            f"the data set has no column {column!r}: set data.text to one of {', '.join(rows.column_names)}"
        )
    made_from = "\n".join((_LAYOUT, rows._fingerprint, column, tokenizer.digest()))
    name = f"hf-{hashlib.blake2b(made_from.encode(), digest_size=10).hexdigest()}.bin"

    def documents() -> Iterator[list[bytes]]:
        return ([text_of(row, column)] for row in rows.select_columns([column]))

    def make(path: Path) -> None:
        write_documents(path, documents(), tokenizer)

    return TokenFile(cached(name, is_whole, make))
