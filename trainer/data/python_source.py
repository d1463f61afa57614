"""The Python standard library's own source: real text that every machine has."""

import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

from gradwire.trainer.config.range import Range
from gradwire.trainer.data.cache import cached
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.parts import check_context, check_fraction, is_validation
from gradwire.trainer.data.token_file import TokenFile, is_whole
from gradwire.trainer.data.tokenize import write_documents
from gradwire.trainer.data.tokenizer import ByteTokenizer
from gradwire.trainer.data.windows import TokenWindows

_ELSEWHERE = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
_LAYOUT = "2"  # changes when the same library would be made into other tokens


class PythonSource:
    """The source of Python's standard library (without its tests) as bytes, split by file.

    The files are sorted by name, joined with a separator and kept as token files in the user's cache folder. Whether a
    file belongs to validation depends on its name alone.

    Args:
        context: Tokens (bytes) of a sample.
        validation_fraction: Share of the files that is kept for validation.

    Raises:
        DataError: an argument is out of range, or this Python comes without its source.
    """

    def __init__(
        self,
        context: Annotated[int, Range(ge=1)] = 128,
        validation_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.05,
    ) -> None:
        self.context = check_context(context)
        self._fraction = check_fraction(validation_fraction)
        self._tokenizer = ByteTokenizer()
        self.vocabulary = self._tokenizer.vocabulary
        self._root = Path(sysconfig.get_paths()["stdlib"])
        if not (self._root / "abc.py").is_file():
            raise DataError(
                f"{self._root} does not hold the source of the standard library, as this Python was built without: "
                "train on files of your own, data=text data.paths=[…]"
            )

    @cached_property
    def train(self) -> TokenWindows:
        """The training samples."""
        return self._part("train", [name for name in self._names if not is_validation(name, self._fraction)])

    @cached_property
    def validation(self) -> TokenWindows | None:
        """The validation samples; None where `validation_fraction` is 0."""
        names = [name for name in self._names if is_validation(name, self._fraction)]
        return self._part("validation", names) if self._fraction else None

    def encode(self, text: str) -> list[int]:
        """A text's UTF-8 bytes."""
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of bytes."""
        return self._tokenizer.decode(ids)

    @cached_property
    def _names(self) -> list[str]:
        names = []
        for folder, folders, files in os.walk(self._root):
            folders[:] = [name for name in folders if name not in _ELSEWHERE]
            inside = Path(folder).relative_to(self._root)
            names += [(inside / name).as_posix() for name in files if name.endswith(".py")]
        return sorted(names)

    def _part(self, part: str, names: list[str]) -> TokenWindows:
        if not names:
            raise DataError(f"validation_fraction={self._fraction} leaves the {part} part without a file")
        name = f"python-{platform.python_version()}-{part}-{self._digest(names)}.bin"
        path = cached(name, is_whole, lambda path: self._make(path, names))
        return TokenWindows(TokenFile(path), self.context)

    def _make(self, path: Path, names: Iterable[str]) -> None:
        write_documents(path, (self._document(name) for name in names), self._tokenizer)

    def _document(self, name: str) -> Iterator[bytes]:
        try:
            yield (self._root / name).read_bytes()
        except OSError as error:
            raise DataError(f"the standard library's {name} cannot be read: {error}") from error

    def _digest(self, names: Iterable[str]) -> str:
        entries = [_LAYOUT]
        for name in names:
            status = (self._root / name).stat()
            entries.append(f"{name}\t{status.st_size}\t{status.st_mtime_ns}")
        return hashlib.blake2b("\n".join(entries).encode(), digest_size=10).hexdigest()
