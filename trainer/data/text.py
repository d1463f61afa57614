"""Text files of the user's own."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

from gradwire.trainer.config.range import Range
from gradwire.trainer.data.cache import cached
from gradwire.trainer.data.files import Source, digest, find
from gradwire.trainer.data.parts import check_context, check_fraction, split_tail
from gradwire.trainer.data.token_file import TokenFile, is_whole
from gradwire.trainer.data.tokenize import write_documents
from gradwire.trainer.data.tokenizer import BYTES, Tokenizer, load_tokenizer
from gradwire.trainer.data.windows import TokenWindows

_LAYOUT = "1"  # changes when the same files would be made into other tokens


class Text:
    """Text files, tokenized once into the user's cache folder.

    Args:
        paths: Files, globs or fsspec URLs; each file is a document.
        validation_paths: Files for validation; null keeps the last part of `paths`.
        context: Tokens of a sample.
        tokenizer: `bytes`, or a Hugging Face tokenizer by folder or hub name.
        validation_fraction: Share of the tokens, at the end, that is kept for validation without `validation_paths`.

    Raises:
        DataError: an argument is out of range, a path names nothing, all files are empty, or there is no such
            tokenizer.
    """

    def __init__(
        self,
        paths: str | list[str],
        validation_paths: str | list[str] | None = None,
        context: Annotated[int, Range(ge=1)] = 128,
        tokenizer: str = BYTES,
        validation_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.05,
    ) -> None:
        self.context = check_context(context)
        self._fraction = 0.0 if validation_paths is not None else check_fraction(validation_fraction)
        self._sources = find(paths)
        self._validation_sources = None if validation_paths is None else find(validation_paths)
        self._tokenizer = load_tokenizer(tokenizer)
        self.vocabulary = self._tokenizer.vocabulary

    @property
    def train(self) -> TokenWindows:
        """The training samples."""
        return self._split[0]

    @cached_property
    def validation(self) -> TokenWindows | None:
        """The validation samples, if there are any."""
        if self._validation_sources is None:
            return self._split[1]
        return TokenWindows(tokenized(self._validation_sources, self._tokenizer), self.context)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(ids)

    @cached_property
    def _split(self) -> tuple[TokenWindows, TokenWindows | None]:
        return split_tail(tokenized(self._sources, self._tokenizer), self.context, self._fraction)


def tokenized(sources: list[Source], tokenizer: Tokenizer) -> TokenFile:
    """The files as one token file in the cache."""
    name = f"text-{digest(sources, _LAYOUT, tokenizer.digest())}.bin"
    path = cached(name, is_whole, lambda path: _make(path, sources, tokenizer))
    return TokenFile(path)


def _make(path: Path, sources: list[Source], tokenizer: Tokenizer) -> None:
    write_documents(path, (source.chunks() for source in sources), tokenizer)
