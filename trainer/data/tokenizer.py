"""Text to token ids and back: bytes, or a Hugging Face tokenizer."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.token_info import narrowest

BYTES = "bytes"
Ids = np.ndarray[Any, np.dtype[Any]]


class Tokenizer(Protocol):
    """Text to token ids and back. `separator` stands between documents (it may be empty)."""

    name: str
    vocabulary: int
    separator: Sequence[int]

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids.

        Raises:
            DataError: an id is outside the vocabulary.
        """
        ...

    def encode_pieces(self, pieces: Sequence[bytes]) -> list[Ids]:
        """The ids of several pieces of UTF-8 text, each encoded by itself, in the narrowest type."""
        ...

    def digest(self) -> str:
        """Changes when the same text would get other ids."""
        ...


class ByteTokenizer:
    """Every byte of UTF-8 is its own token; ASCII's file separator (28) stands between documents."""

    name = BYTES
    vocabulary = 256
    separator: Sequence[int] = (28,)

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of a text."""
        return list(text.encode("utf-8", errors="surrogateescape"))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of bytes; what is not UTF-8 becomes a replacement character."""
        return bytes(_checked(ids, self)).decode("utf-8", errors="replace")

    def encode_pieces(self, pieces: Sequence[bytes]) -> list[Ids]:
        """The bytes as they are, whether UTF-8 or not."""
        return [np.frombuffer(piece, dtype=np.uint8) for piece in pieces]

    def digest(self) -> str:
        """There is one way to read bytes."""
        return BYTES


class HuggingFaceTokenizer:
    """A tokenizer of the transformers package; its end-of-text token, where it has one, stands between documents.

    Args:
        name: A local folder, or a name on the hub.

    Raises:
        DataError: transformers is not installed, or there is no such tokenizer.
    """

    def __init__(self, name: str) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise DataError(
                f"the tokenizer {name!r} needs the transformers package: pip install 'gradwire[hf]', or use "
                f"tokenizer={BYTES}"
            ) from error
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(name)
        except Exception as error:  # what the hub's client raises is not a closed set
            reason = str(error).strip().partition("\n")[0]
            raise DataError(
                f"the tokenizer {name!r} cannot be loaded ({reason}): give {BYTES}, a folder with a tokenizer, or the "
                "name of one on the hub"
            ) from error
        self.name = name
        self.vocabulary = len(self._tokenizer)
        end = self._tokenizer.eos_token_id
        self.separator: Sequence[int] = () if end is None else (int(end),)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens."""
        return list(self._encoded([text])[0])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return str(self._tokenizer.decode(_checked(ids, self)))

    def encode_pieces(self, pieces: Sequence[bytes]) -> list[Ids]:
        """The ids of UTF-8 text.

        Raises:
            DataError: a piece is not UTF-8.
        """
        layout = np.dtype(narrowest(self.vocabulary))
        return [np.array(ids, dtype=layout) for ids in self._encoded([_text(piece) for piece in pieces])]

    def digest(self) -> str:
        """A hash of everything that the tokenizer's own file would hold, or else of its vocabulary."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        whole = backend.to_str() if backend is not None else json.dumps(self._tokenizer.get_vocab(), sort_keys=True)
        return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()

    @property
    def chat_template(self) -> str | None:
        """The tokenizer's own chat template, if it has one."""
        try:
            return str(self._tokenizer.get_chat_template())
        except ValueError:
            return None

    def apply_template(self, messages: Sequence[Mapping[str, Any]], template: str) -> tuple[list[int], list[bool]]:
        """A conversation's ids by a chat template, and for each whether it lies within the generation markers."""
        out = self._tokenizer.apply_chat_template(
            list(messages), chat_template=template, return_dict=True, return_assistant_tokens_mask=True
        )
        return list(out["input_ids"]), [bool(mark) for mark in out["assistant_masks"]]

    def special_tokens(self) -> str:
        """The special tokens as a template sees them."""
        return json.dumps(self._tokenizer.special_tokens_map, sort_keys=True, default=str)

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        encoded: list[list[int]] = self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return encoded


def load_tokenizer(name: str) -> Tokenizer:
    """`bytes`, or a Hugging Face tokenizer by folder or hub name.

    Raises:
        DataError: there is no such tokenizer.
    """
    return ByteTokenizer() if name == BYTES else HuggingFaceTokenizer(name)


def _checked(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    found = [int(each) for each in ids]
    wrong = next((each for each in found if not 0 <= each < tokenizer.vocabulary), None)
    if wrong is not None:
        raise DataError(
            f"token id {wrong} cannot be decoded: the tokenizer {tokenizer.name!r} knows ids 0 … "
            f"{tokenizer.vocabulary - 1}; give the model that vocabulary, or the data the tokenizer it was written with"
        )
    return found


def _text(piece: bytes) -> str:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError as error:
        near = piece[max(error.start - 20, 0) : error.end + 20]
        raise DataError(
            f"the text is not UTF-8 ({error.reason}, near {near!r}): convert it, or use tokenizer={BYTES}, which takes "
            "any file"
        ) from error
