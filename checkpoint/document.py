"""JSON documents of a store: strictly read, because everything that comes back from a store is untrusted."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from gradwire.checkpoint.errors import DamagedCheckpoint, UnsupportedFormat

FORMAT = 1
LARGEST = 2**62
_SHA256 = re.compile(r"[0-9a-f]{64}")
_XXH3 = re.compile(r"[0-9a-f]{32}")


def dump(values: Mapping[str, Any]) -> bytes:
    """A document as ASCII JSON in one line."""
    return json.dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def load(data: bytes, where: str) -> "Fields":
    """The document in `data`, known to be of a format that this version reads.

    Args:
        data: The bytes.
        where: What is read, for messages.

    Raises:
        UnsupportedFormat: it was written in a newer format.
        DamagedCheckpoint: it is no strict JSON object, or has no format.
    """
    try:
        values = json.loads(
            data.decode("ascii"), object_pairs_hook=_without_duplicates, parse_constant=_refuse, parse_float=_refuse
        )
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{where} is not a valid document: {error}") from error
    if not isinstance(values, dict):
        raise DamagedCheckpoint(f"{where} is not a valid document: found {type(values).__name__}, expected an object")
    fields = Fields(values, where)
    found = fields.integer("format", 1)
    if found != FORMAT:
        raise UnsupportedFormat(
            f"{where} has format {found} and this version of gradwire reads format {FORMAT}: install a newer gradwire"
        )
    return fields


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key stands twice in an object")
    return values


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is not written as a number here")


@dataclass(frozen=True)
class Fields:
    """An object of a document, read field by field; each method raises DamagedCheckpoint where a field is not as told.

    Args:
        values: The object.
        where: What it is, for messages.
    """

    values: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, value: object, where: str) -> "Fields":
        if not isinstance(value, dict):
            raise DamagedCheckpoint(f"{where}: expected an object, found {type(value).__name__}")
        return cls(value, where)

    def integer(self, key: str, low: int = 0, high: int = LARGEST) -> int:
        value = self._get(key)
        if type(value) is not int or not low <= value <= high:
            raise self.damaged(key, f"expected a whole number from {low} to {high}")
        return value

    def text(self, key: str, longest: int = 10_000) -> str:
        value = self._get(key)
        if not isinstance(value, str) or len(value) > longest:
            raise self.damaged(key, f"expected a text of at most {longest} characters")
        return value

    def sha256(self, key: str) -> str:
        value = self.text(key)
        if not _SHA256.fullmatch(value):
            raise self.damaged(key, "expected 64 hexadecimal digits")
        return value

    def xxh3(self, key: str) -> str:
        value = self.text(key)
        if not _XXH3.fullmatch(value):
            raise self.damaged(key, "expected 32 hexadecimal digits")
        return value

    def list(self, key: str, longest: int = LARGEST) -> list[Any]:
        value = self._get(key)
        if not isinstance(value, list) or len(value) > longest:
            raise self.damaged(key, f"expected a list of at most {longest} entries")
        return value

    def fields(self, key: str) -> "Fields":
        return Fields.of(self._get(key), f"{self.where}, {key}")

    def optional(self, key: str) -> "Fields | None":
        """The object under a key, or None where null stands there."""
        return None if self._get(key) is None else self.fields(key)

    def each(self, key: str, read: Callable[["Fields"], Any]) -> tuple[Any, ...]:
        """What `read` makes of each object in the list under a key."""
        return tuple(
            read(Fields.of(value, f"{self.where}, {key}[{index}]")) for index, value in enumerate(self.list(key))
        )

    def damaged(self, key: str, expected: str) -> DamagedCheckpoint:
        found = repr(self.values.get(key))
        return DamagedCheckpoint(f"{self.where}: {key} is {found[:80]}, {expected}")

    def _get(self, key: str) -> Any:
        if key not in self.values:
            raise DamagedCheckpoint(f"{self.where}: {key} is missing")
        return self.values[key]
