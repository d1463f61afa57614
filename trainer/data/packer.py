"""Rows made into packed files in the user's cache folder."""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from gradwire.trainer.data.cache import cached
from gradwire.trainer.data.chat_template import ChatTemplate
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.messages import Reading
from gradwire.trainer.data.packing import MARKS, Document, PackedDocuments, has_targets, marked, packed
from gradwire.trainer.data.records import Records
from gradwire.trainer.data.token_file import TokenFile, is_whole, write_tokens
from gradwire.trainer.data.tokenizer import Tokenizer

log = logging.getLogger(__name__)
Overlong = Literal["truncate", "refuse"]
_LAYOUT = "1"  # changes when the same rows would be packed otherwise


@dataclass(frozen=True)
class Counts:
    """What was packed.

    Args:
        conversations: All there were.
        truncated: Those that were cut.
        dropped: Those of which nothing to learn was left.
        training: Rows for training.
        validation: Rows for validation, which come after them.
    """

    conversations: int
    truncated: int
    dropped: int
    training: int
    validation: int

    @staticmethod
    def path_for(path: Path) -> Path:
        """Where the counts of the packed file at `path` are."""
        return path.with_suffix(".counts.json")

    @classmethod
    def read(cls, path: Path) -> "Counts":
        """Those of the packed file at `path`."""
        return cls(**json.loads(cls.path_for(path).read_text("utf-8")))

    def write(self, path: Path) -> None:
        """Put them beside the packed file at `path`, whole or not at all."""
        beside = self.path_for(path)
        temporary = beside.with_name(f"{beside.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(self)), "utf-8")
        temporary.replace(beside)


class Packer:
    """Makes rows packed files in the cache.

    Args:
        reading: A row as a conversation.
        template: A conversation as tokens.
        tokenizer: Whose tokens.
        context: Tokens of a sample.
        overlong: What becomes of a conversation that is longer.
    """

    def __init__(
        self, reading: Reading, template: ChatTemplate, tokenizer: Tokenizer, context: int, overlong: Overlong
    ) -> None:
        self._reading = reading
        self._template = template
        self._tokenizer = tokenizer
        self._context = context
        self._overlong = overlong

    def pack(self, rows: Records, fraction: float) -> tuple[PackedDocuments, PackedDocuments | None]:
        """The samples for training, and for validation those of the last `fraction` of the conversations.

        Raises:
            DataError: a row is no conversation, or there is none left for training.
        """
        settings = (_LAYOUT, str(self._context), self._overlong, str(fraction))
        made_from = "\n".join((*settings, rows.digest(), self._reading.digest(), self._template.digest()))
        name = f"chat-{hashlib.blake2b(made_from.encode(), digest_size=10).hexdigest()}.bin"
        path = cached(name, _is_whole, lambda path: self._make(path, rows, fraction))
        counts, file = Counts.read(path), TokenFile(path)
        self._tell(counts)
        training = PackedDocuments(file, self._context, 0, counts.training)
        if not counts.validation:
            return training, None
        return training, PackedDocuments(file, self._context, counts.training, counts.validation)

    def _make(self, path: Path, rows: Records, fraction: float) -> None:
        documents: list[Document] = []
        total = truncated = 0
        for record in rows:
            document = self._document(*self._template(self._reading(record)), record.where)
            total += 1
            truncated += len(document) > self._context
            document = document[: self._context]
            if has_targets(document):
                documents.append(document)
        kept = len(documents)
        validation = max(round(kept * fraction), 1) if fraction and kept > 1 else 0
        if not kept:
            raise DataError(
                f"none of {total} conversations has anything to learn within data.context={self._context} tokens: give "
                "more data, or raise data.context"
            )
        parts = documents[: kept - validation], documents[kept - validation :]
        padding = next(iter(self._tokenizer.separator), 0)
        packings = [list(packed(part, self._context, padding)) for part in parts]
        Counts(total, truncated, total - kept, *map(len, packings)).write(path)
        vocabulary = MARKS * self._tokenizer.vocabulary
        write_tokens(path, (row for packing in packings for row in packing), vocabulary, self._tokenizer.name)

    def _document(self, ids: Sequence[int], learned: Sequence[bool], where: str) -> Document:
        if self._overlong == "refuse" and len(ids) > self._context:
            raise DataError(
                f"{where}: the conversation has {len(ids)} tokens and data.context={self._context}: raise that, "
                "shorten the conversation, or set data.overlong=truncate"
            )
        return marked(ids, learned)

    def _tell(self, counts: Counts) -> None:
        if counts.truncated:
            log.warning(
                "%d of %d conversations are longer than data.context=%d tokens and are cut there; %d of them have "
                "nothing to learn left and are left out",
                counts.truncated,
                counts.conversations,
                self._context,
                counts.dropped,
            )


def _is_whole(path: Path) -> bool:
    try:
        Counts.read(path)
    except (OSError, ValueError, TypeError):
        return False
    return is_whole(path)
