"""Token files that exist already."""

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated

from gradwire.trainer.config.range import Range
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.parts import check_context, check_fraction, split_tail
from gradwire.trainer.data.token_file import TokenFile
from gradwire.trainer.data.token_info import Width
from gradwire.trainer.data.tokenizer import Tokenizer, load_tokenizer
from gradwire.trainer.data.windows import TokenWindows

log = logging.getLogger(__name__)


class Tokens:
    """A flat file of token ids, as `gradwire tokenize` and many other programs write it; read from the disk as needed.

    Args:
        path: The file: uint8, uint16 or uint32, little-endian, without a header.
        validation_path: A file for validation; null keeps the last part of `path`.
        context: Tokens of a sample.
        dtype: Type of the ids; null takes it from the description beside the file.
        vocabulary: All ids are below this; null takes it from the description.
        tokenizer: `bytes` or a Hugging Face tokenizer, to turn samples into text; null takes it from the description.
        validation_fraction: Share of the tokens, at the end, that is kept for validation without `validation_path`.

    Raises:
        DataError: an argument is out of range, a file is missing, empty, of another type or shorter than a sample.
    """

    def __init__(
        self,
        path: str,
        validation_path: str | None = None,
        context: Annotated[int, Range(ge=1)] = 128,
        dtype: Width | None = None,
        vocabulary: Annotated[int, Range(ge=1)] | None = None,
        tokenizer: str | None = None,
        validation_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.01,
    ) -> None:
        self.context = check_context(context)
        file = _open(path, dtype, vocabulary)
        fraction = 0.0 if validation_path is not None else check_fraction(validation_fraction)
        self.train, self.validation = split_tail(file, context, fraction)
        if validation_path is not None:
            self.validation = TokenWindows(_open(validation_path, dtype, vocabulary), context)
        self.vocabulary: int | None = file.vocabulary
        self._given = tokenizer is not None
        self._named = tokenizer or (file.info.tokenizer if file.info else None)

    @property
    def encode(self) -> Callable[[str], list[int]]:
        """Text to token ids; not there where no tokenizer is known."""
        return self._tokenizer.encode

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:
        """Token ids to text; not there where no tokenizer is known."""
        return self._tokenizer.decode

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        if self._named is None:
            raise AttributeError("these tokens come without a tokenizer: set data.tokenizer")
        try:
            return load_tokenizer(self._named)
        except DataError as error:
            if self._given:
                raise
            log.warning("no text can be shown: %s", error)  # training itself needs ids only
            raise AttributeError("the tokenizer of these tokens cannot be loaded: set data.tokenizer") from error


def _open(path: str, dtype: Width | None, vocabulary: int | None) -> TokenFile:
    if "://" in path:
        raise DataError(
            f"{path} is a URL: token files are read from a local disk; copy it there first, or use data=text"
        )
    return TokenFile(path, dtype, vocabulary)
