"""A sample of a run as text, with which of it is learned."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.parts import training_set
from gradwire.trainer.data.stream import SampleStream
from gradwire.trainer.losses import IGNORED

_BETWEEN = ("⟦", "⟧")  # around what is learned, where there are no colors
_PICTURES = 0x2400  # where Unicode has pictures of the control characters


@dataclass(frozen=True)
class Piece:
    """A stretch of text.

    Args:
        text: The text.
        learned: Whether its tokens are targets.
    """

    text: str
    learned: bool


@dataclass(frozen=True)
class Preview:
    """A sample to look at.

    Args:
        number: Which of the run.
        documents: What it holds, in pieces; those of which nothing is learned come last, and are padding.
        tokens: How many there are.
        learned: How many of them are targets.
        padding: How many are padding.
    """

    number: int
    documents: tuple[tuple[Piece, ...], ...]
    tokens: int
    learned: int
    padding: int

    @property
    def summary(self) -> str:
        """All numbers in a line."""
        many = f"{len(self.documents)} documents" if len(self.documents) != 1 else "1 document"
        padding = f", {self.padding} of padding" if self.padding else ""
        return f"sample {self.number}: {many}, {self.tokens} tokens, {self.learned} learned{padding}"


def look(config: Mapping[str, Any], allow: tuple[str, ...], number: int) -> Preview:
    """A sample of the run that a configuration describes.

    Args:
        config: A valid configuration.
        allow: Packages that the user allows targets from.
        number: Ordinal of the sample in the run.

    Raises:
        DataError: the data is not text, or cannot be read.
    """
    from gradwire.trainer.assemble import component

    source = component(config["data"], allow, "workers")
    if not hasattr(source, "decode"):
        raise DataError(f"{type(source).__name__} cannot be shown as text: it has no decode")
    batch = SampleStream(training_set(source), config["run"]["seed"]).fetch(np.array([number]))
    return previewed(source, {name: values[0].numpy() for name, values in batch.items()}, number)


def previewed(source: Any, sample: Mapping[str, np.ndarray[Any, Any]], number: int) -> Preview:
    """A sample with `input_ids`, `labels` and perhaps `positions`, decoded by its source."""
    ids, labels = sample["input_ids"], sample["labels"]
    learned = np.concatenate([[False], labels[:-1] != IGNORED])
    positions = sample.get("positions", np.arange(len(ids)))
    starts = [*np.flatnonzero(positions == 0).tolist(), len(ids)]
    spans = list(itertools.pairwise(starts))
    empty = len(spans) > 1 and not learned[spans[-1][0] :].any()
    shown = spans[:-1] if empty else spans
    documents = tuple(tuple(_pieces(source, ids[a:b].tolist(), learned[a:b].tolist())) for a, b in shown)
    return Preview(number, documents, len(ids), int(learned.sum()), spans[-1][1] - spans[-1][0] if empty else 0)


def _pieces(source: Any, ids: Sequence[int], learned: Sequence[bool]) -> Iterator[Piece]:
    place = 0
    for mark, stretch in itertools.groupby(learned):
        length = len(list(stretch))
        yield Piece(_visible(source.decode(ids[place : place + length])), mark)
        place += length


def _visible(text: str) -> str:
    """Text without control characters but line ends: what data says is not to steer a terminal."""
    return "".join(
        sign if sign == "\n" or sign.isprintable() else chr(_PICTURES + ord(sign)) if ord(sign) < 32 else "�"
        for sign in text
    )


def show(preview: Preview) -> None:
    """Print it: what is not learned in grey or, where there are no colors, what is learned in brackets."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    colored = console.is_terminal and not console.no_color
    console.print(Text(preview.summary))
    for document in preview.documents:
        text = Text()
        text.append("── ", style="bright_black" if colored else "")
        for piece in document:
            if colored:
                text.append(piece.text, style="" if piece.learned else "bright_black")
            else:
                text.append(piece.text.join(_BETWEEN) if piece.learned else piece.text)
        console.print(text)
