"""Conversations to fine-tune on: packed into full contexts, of which the assistant's turns are learned."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

from gradwire.trainer.config.range import Range
from gradwire.trainer.data.chat_template import chat_template
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.messages import Instructions, Messages, Reading
from gradwire.trainer.data.packer import Overlong, Packer
from gradwire.trainer.data.packing import PackedDocuments
from gradwire.trainer.data.parts import check_context, check_fraction
from gradwire.trainer.data.records import Place
from gradwire.trainer.data.tokenizer import BYTES, load_tokenizer


class Conversations:
    """What `Chat` and `Instruction` have in common.

    Args:
        places: Where the rows for training and for validation are, each with its split; of validation None where the
            last conversations of training are kept for it.
        reading: Makes a row a conversation.
        context: Tokens of a sample.
        tokenizer: Text to token ids.
        template: Its name.
        overlong: What becomes of a conversation that is longer.
        fraction: Share of the conversations that is kept for validation.
    """

    packed = True  # samples hold several documents: models must keep them apart

    def __init__(
        self,
        places: tuple[tuple[Place, str], tuple[Place, str] | None],
        reading: Reading,
        context: int,
        tokenizer: str,
        template: str | None,
        overlong: Overlong,
        fraction: float,
    ) -> None:
        self.context = check_context(context)
        self._places = places
        self._fraction = check_fraction(fraction) if places[1] is None else 0.0
        self._tokenizer = load_tokenizer(tokenizer)
        self.vocabulary = self._tokenizer.vocabulary
        self._packer = Packer(reading, chat_template(self._tokenizer, template), self._tokenizer, context, overlong)

    @property
    def train(self) -> PackedDocuments:
        """The training samples."""
        return self._split[0]

    @cached_property
    def validation(self) -> PackedDocuments | None:
        """The validation samples, if there are any."""
        if self._places[1] is None:
            return self._split[1]
        place, split = self._places[1]
        return self._packer.pack(place.rows(split), 0.0)[0]

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(ids)

    @cached_property
    def _split(self) -> tuple[PackedDocuments, PackedDocuments | None]:
        place, split = self._places[0]
        return self._packer.pack(place.rows(split), self._fraction)


class Chat(Conversations):
    """Conversations, packed once into the user's cache folder; the loss is on what the assistant says.

    Args:
        paths: JSONL files, globs or fsspec URLs, a conversation a line; or give `dataset`.
        dataset: A Hugging Face data set instead, by name on the hub or a folder that `save_to_disk` wrote.
        name: Which of the data set's configurations.
        split: The data set's split to train on.
        validation_paths: Files for validation; null keeps the last conversations.
        validation_split: The data set's split for validation; null keeps the last conversations.
        messages: The field with the list of messages, each {"role": …, "content": …}.
        context: Tokens of a sample, in which several conversations find room.
        tokenizer: `bytes`, or a Hugging Face tokenizer by folder or hub name.
        template: `plain`, or the file of a Jinja template with generation markers; null takes the tokenizer's own
            (of bytes: plain).
        overlong: What becomes of a conversation longer than the context: truncate cuts it there and counts, refuse
            ends the run.
        validation_fraction: Share of the conversations, at the end, that is kept for validation without files or split
            of its own.

    Raises:
        DataError: an argument is out of range, a package is missing, or there is no such tokenizer or template.
            Training and validation part raise it where a row is no conversation, and say which.
    """

    def __init__(
        self,
        paths: str | list[str] | None = None,
        dataset: str | None = None,
        name: str | None = None,
        split: str = "train",
        validation_paths: str | list[str] | None = None,
        validation_split: str | None = None,
        messages: str = "messages",
        context: Annotated[int, Range(ge=1)] = 128,
        tokenizer: str = BYTES,
        template: str | None = None,
        overlong: Overlong = "truncate",
        validation_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.05,
    ) -> None:
        places = _places(paths, dataset, name, split, validation_paths, validation_split)
        super().__init__(places, Messages(messages), context, tokenizer, template, overlong, validation_fraction)


class Instruction(Conversations):
    """Instructions and answers, packed once into the user's cache folder; the loss is on the answers.

    Args:
        paths: JSONL files, globs or fsspec URLs, an object a line; or give `dataset`.
        dataset: A Hugging Face data set instead, by name on the hub or a folder that `save_to_disk` wrote.
        name: Which of the data set's configurations.
        split: The data set's split to train on.
        validation_paths: Files for validation; null keeps the last rows.
        validation_split: The data set's split for validation; null keeps the last rows.
        instruction: The field with what is asked.
        input: The field with what it is about, where a row has one; null reads none.
        output: The field with the answer.
        system: What the system says first; null is nothing.
        context: Tokens of a sample, in which several rows find room.
        tokenizer: `bytes`, or a Hugging Face tokenizer by folder or hub name.
        template: `plain`, or the file of a Jinja template with generation markers; null takes the tokenizer's own
            (of bytes: plain).
        overlong: What becomes of a row longer than the context: truncate cuts it there and counts, refuse ends the run.
        validation_fraction: Share of the rows, at the end, that is kept for validation without files or split of its
            own.

    Raises:
        DataError: as of `Chat`.
    """

    def __init__(
        self,
        paths: str | list[str] | None = None,
        dataset: str | None = None,
        name: str | None = None,
        split: str = "train",
        validation_paths: str | list[str] | None = None,
        validation_split: str | None = None,
        instruction: str = "instruction",
        input: str | None = "input",  # noqa: A002 - the key's name
        output: str = "output",
        system: str | None = None,
        context: Annotated[int, Range(ge=1)] = 128,
        tokenizer: str = BYTES,
        template: str | None = None,
        overlong: Overlong = "truncate",
        validation_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.05,
    ) -> None:
        places = _places(paths, dataset, name, split, validation_paths, validation_split)
        reading = Instructions(instruction, input, output, system)
        super().__init__(places, reading, context, tokenizer, template, overlong, validation_fraction)


def _places(
    paths: str | list[str] | None,
    dataset: str | None,
    name: str | None,
    split: str,
    validation_paths: str | list[str] | None,
    validation_split: str | None,
) -> tuple[tuple[Place, str], tuple[Place, str] | None]:
    training = Place(paths, dataset, name)
    if validation_paths is not None:
        return (training, split), (Place(validation_paths, None, None), split)
    if validation_split is None:
        return (training, split), None
    if dataset is None:
        raise DataError("validation_split is of a data set: name files with validation_paths")
    return (training, split), (training, validation_split)
