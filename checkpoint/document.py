"""JSON documents of a store: strictly read, because everything that comes back from a store is untrusted."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from gradwire.checkpoint.errors import DamagedCheckpoint, UnsupportedFormat

FORMAT = 1
LARGEST = 2**62
DEEPEST_DOCUMENT = 200  # what a tree of 64 levels takes
MOST_AXES = 64
_MOST_ELEMENTS = 2**56
_LONGEST_NUMBER = len(str(-LARGEST))
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
            data.decode("ascii"),
            object_pairs_hook=_without_duplicates,
            parse_constant=_refuse,
            parse_float=_refuse,
            parse_int=_whole_number,
        )
        _check_depth(values)
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


def _whole_number(text: str) -> int:
    if len(text) > _LONGEST_NUMBER or not -LARGEST <= (number := int(text)) <= LARGEST:
        raise ValueError(f"{text[:40]} is larger than a number may be here")
    return number


def _check_depth(values: object) -> None:
    """Raise ValueError where something is nested deeper than any document is."""
    level = [values]
    for _ in range(DEEPEST_DOCUMENT):
        entries = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list))
        level = [each for found in entries for each in found if isinstance(each, dict | list)]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEEPEST_DOCUMENT} levels deep")


def shown(value: object) -> str:
    """A value of a document as a message tells it: in a few words, however large or deep it is."""
    if isinstance(value, str):
        return repr(value[:80])
    if isinstance(value, dict):
        return f"an object of {len(value)} entries"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} entries"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a whole number of {value.bit_length()} bits"
    return str(value) if value is None or isinstance(value, int) else f"a {type(value).__name__}"


def are_sizes(values: Iterable[Any]) -> bool:
    """Whether these are sizes, or offsets, that a tensor can have: few, and of a product that can be counted."""
    sizes = [*values]
    return (
        len(sizes) <= MOST_AXES
        and all(type(size) is int and 0 <= size <= _MOST_ELEMENTS for size in sizes)
        and math.prod(max(size, 1) for size in sizes) <= _MOST_ELEMENTS
    )


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
        return DamagedCheckpoint(f"{self.where}: {key[:80]} is {shown(self.values.get(key))}, {expected}")

    def _get(self, key: str) -> Any:
        if key not in self.values:
            raise DamagedCheckpoint(f"{self.where}: {key} is missing")
        return self.values[key]
