"""Rows of JSONL files or of a Hugging Face data set, each with the words that say where it stands."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.files import Source, digest, find
from gradwire.trainer.data.hub import check_installed, open_rows


@dataclass(frozen=True)
class Record:
    """One row.

    Args:
        where: Says to people where it stands: `chats.jsonl:17`.
        values: Its fields.
    """

    where: str
    values: Mapping[str, Any]


class Records(Protocol):
    """Rows that can be gone through again and again."""

    def __iter__(self) -> Iterator[Record]: ...

    def digest(self) -> str:
        """Changes when the rows do."""
        ...


class JsonLines:
    """The objects of JSONL files, one a line; empty lines are passed over, compressed files expanded.

    Args:
        sources: The files.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def __iter__(self) -> Iterator[Record]:
        for source in self._sources:
            for number, line in enumerate(_lines(source), 1):
                if line.strip():
                    where = f"{source.url}:{number}"
                    yield Record(where, _parsed(line, where))

    def digest(self) -> str:
        return digest(self._sources)


class DatasetRows:
    """The rows of a `datasets.Dataset`.

    Args:
        rows: The data set.
        name: What it is called.
    """

    def __init__(self, rows: Any, name: str) -> None:
        self._rows = rows
        self._name = name

    def __iter__(self) -> Iterator[Record]:
        return (Record(f"{self._name}, row {number}", row) for number, row in enumerate(self._rows))

    def digest(self) -> str:
        return str(self._rows._fingerprint)


@dataclass(frozen=True)
class Place:
    """Where rows come from: either files or a data set.

    Args:
        paths: JSONL files, globs or fsspec URLs.
        dataset: A data set's name on the hub, or a folder that `save_to_disk` wrote.
        name: Which of the data set's configurations.

    Raises:
        DataError: neither is given or both are, or the datasets package is missing.
    """

    paths: str | Sequence[str] | None
    dataset: str | None
    name: str | None

    def __post_init__(self) -> None:
        if (self.paths is None) == (self.dataset is None):
            found = "neither" if self.paths is None else "both"
            raise DataError(f"paths or dataset says where the rows are, found {found}: give data.paths=[FILE.jsonl]")
        if self.dataset is not None:
            check_installed()

    def rows(self, split: str) -> Records:
        """The rows, of a data set those of a split.

        Raises:
            DataError: there are no such files or data set.
        """
        if self.dataset is None:
            assert self.paths is not None, "one of them is given"
            return JsonLines(find(self.paths))
        return DatasetRows(open_rows(self.dataset, self.name, split), f"{self.dataset} ({split})")


def _lines(source: Source) -> Iterator[bytes]:
    rest = b""
    for chunk in source.chunks():
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _parsed(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        values = json.loads(line)
    except ValueError as error:
        shown = line.strip()[:60].decode(errors="replace")
        raise DataError(f"{where} is not JSON ({error}), found {shown}: expected one object a line") from error
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        raise DataError(f'{where} holds a JSON {kind}, expected an object such as {{"messages": […]}}')
    return values
