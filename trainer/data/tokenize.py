"""Text files to token files, in constant memory."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.files import find
from gradwire.trainer.data.token_file import write_tokens
from gradwire.trainer.data.token_info import TokenInfo
from gradwire.trainer.data.tokenizer import BYTES, Ids, Tokenizer, load_tokenizer

_PIECE = 1 << 16  # bytes of text that are encoded as one
_LONGEST = 1 << 22  # a line longer than this is cut anywhere
_TOGETHER = 32  # pieces of full size that a tokenizer gets at once, to encode in parallel
_MOST = 1024  # pieces of any size
_LINE = re.compile(rb"\n(?=\S)")


def tokenize(src: str | Iterable[str], dst: str | Path, tokenizer: str = BYTES) -> TokenInfo:
    """Write the text of files as one token file with its description beside it.

    Args:
        src: Files, globs or fsspec URLs; each file is a document.
        dst: The token file; one that is there is replaced when the new one is whole.
        tokenizer: `bytes`, or a Hugging Face tokenizer by folder or hub name. It sees the text in pieces of about
            64 KB, cut where a line begins with something other than space.

    Returns:
        What the description says.

    Raises:
        DataError: a file or tokenizer is missing, the text is not UTF-8, or `dst` cannot be written.
    """
    path = Path(dst)
    if "://" in str(dst) or path.is_dir() or not path.absolute().parent.is_dir():
        raise DataError(f"{dst} cannot be written: expected the path of a file in a local folder that exists")
    for file in (path, TokenInfo.path_for(path)):
        if file.exists() and not file.is_file():  # else the new file would take the place of a device or a pipe
            raise DataError(f"{file} is not a regular file: a token file and its description take its place when whole")
    codec = load_tokenizer(tokenizer)
    return write_documents(path, (source.chunks() for source in find(src)), codec)


def write_documents(path: Path, documents: Iterable[Iterable[bytes]], tokenizer: Tokenizer) -> TokenInfo:
    """Write documents, each given as chunks of bytes, as one token file with separators between them.

    Raises:
        DataError: there are no tokens at all, or a file cannot be read or written.
    """
    return write_tokens(path, encoded(documents, tokenizer), tokenizer.vocabulary, tokenizer.name)


def encoded(documents: Iterable[Iterable[bytes]], tokenizer: Tokenizer) -> Iterator[Ids]:
    """The ids of documents, a bounded number at a time, with separators between the documents."""
    for batch in _batches(documents):
        ids = tokenizer.encode_pieces([piece for piece, _ in batch])
        separators = [tokenizer.separator if opens else () for _, opens in batch]
        for separator, piece in zip(separators, ids, strict=True):
            if separator:
                yield np.array(separator, dtype=piece.dtype)
            yield piece


def _batches(documents: Iterable[Iterable[bytes]]) -> Iterator[list[tuple[bytes, bool]]]:
    """Pieces for a tokenizer to encode in parallel, each with whether a document after the first begins with it."""
    batch: list[tuple[bytes, bool]] = []
    size = 0
    for number, document in enumerate(documents):
        opens = number > 0
        for piece in pieces(document):
            batch.append((piece, opens))
            opens = False
            size += len(piece)
            if size >= _TOGETHER * _PIECE or len(batch) == _MOST:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes cut into pieces of about 64 KB, each beginning where a line begins with something but space.

    Where no line begins for 4 MB, a piece ends at the end of a UTF-8 character.
    """
    rest = b""
    for chunk in chunks:
        rest += chunk
        start = 0
        while len(rest) - start > _PIECE:
            line = _LINE.search(rest, start + _PIECE - 1, start + _LONGEST)
            if line is not None:
                stop = line.end()
            elif len(rest) - start > _LONGEST:
                stop = _character_end(rest, start + _LONGEST)
            else:
                break
            yield rest[start:stop]
            start = stop
        rest = rest[start:]
    if rest:
        yield rest


def _character_end(text: bytes, stop: int) -> int:
    """The last place at or before `stop` (within a character's length) where a UTF-8 character ends."""
    for place in range(stop, max(stop - 4, 0), -1):
        if place == len(text) or text[place] & 0xC0 != 0x80:
            return place
    return stop
