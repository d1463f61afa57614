"""Opening data sets of the Hugging Face hub, or local files in its formats."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradwire.trainer.data.errors import DataError


def check_installed() -> None:
    """Raise a DataError where the datasets package is missing."""
    import importlib.util

    if importlib.util.find_spec("datasets") is None:
        raise DataError("Hugging Face data sets need the datasets package: pip install 'gradwire[hf]'")


def open_split(
    path: str, name: str | None, data_files: str | list[str] | Mapping[str, Any] | None, split: str, *, streaming: bool
) -> Any:
    """One split as a `datasets.Dataset`, or as an `IterableDataset` where it is streamed.

    Raises:
        DataError: there is no such data set or split, or it cannot be reached.
    """
    import datasets

    try:
        return datasets.load_dataset(path, name, data_files=data_files, split=split, streaming=streaming)
    except Exception as error:  # what the hub's client raises is not a closed set
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"the data set {path!r} (name {name}, files {data_files}, split {split!r}) cannot be opened: {reason}. "
            "Give the name of one on the hub, or json, csv, parquet or text with data.data_files"
        ) from error


def open_rows(path: str, name: str | None, split: str) -> Any:
    """One split of a data set of the hub, or of a folder that `save_to_disk` wrote, as a `datasets.Dataset`.

    Raises:
        DataError: there is no such data set or split, or it cannot be reached.
    """
    import datasets

    whole, parts = (Path(path) / file for file in ("state.json", "dataset_dict.json"))
    if not whole.is_file() and not parts.is_file():
        return open_split(path, name, None, split, streaming=False)
    try:
        saved = datasets.load_from_disk(path)
        return saved[split] if parts.is_file() else saved
    except Exception as error:  # a KeyError, or whatever the package raises
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"split {split!r} of the data set saved in {path} cannot be opened: {reason}") from error


def text_of(row: Mapping[str, Any], column: str) -> bytes:
    """The text in a row's column as UTF-8.

    Raises:
        DataError: there is no such column, or it does not hold text.
    """
    if column not in row:
        raise DataError(f"the data set has no column {column!r}: set data.text to one of {', '.join(map(str, row))}")
    text = row[column]
    if text is not None and not isinstance(text, str):
        raise DataError(
            f"column {column!r} holds {type(text).__name__}, expected text: set data.text to another column"
        )
    return (text or "").encode("utf-8", errors="surrogatepass")
