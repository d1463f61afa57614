"""When a sequence ends, and its text as it grows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gradwire.inference.errors import InferenceError

Decode = Callable[[Sequence[int]], str]
_MARGIN = 8  # tokens that may stand for no text of their own
_REMEMBERED = 256  # tokens that are decoded again with each new one, at most
_BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Stop:
    """What ends a sequence before its length does.

    Args:
        tokens: Ids; the one that ends a sequence is its last token.
        strings: Texts; the tokens that complete one are the sequence's last, and its text ends before it.
        decode: Token ids to text; needed for strings.

    Raises:
        InferenceError: strings without a way to decode, or an empty one.
    """

    tokens: frozenset[int] = field(default_factory=frozenset)
    strings: tuple[str, ...] = ()
    decode: Decode | None = None

    def __post_init__(self) -> None:
        if self.strings and self.decode is None:
            raise InferenceError("stop strings need `decode`, which turns token ids into text")
        if "" in self.strings:
            raise InferenceError("an empty stop string would end every sequence at once")

    @property
    def span(self) -> int:
        """How many of a sequence's last tokens decide whether it ends."""
        return max((len(string.encode()) + _MARGIN for string in self.strings), default=1)

    def ends(self, last: Sequence[int]) -> bool:
        """Whether a sequence with these last tokens, `span` new ones or fewer, ends, having gone on until now."""
        if last[-1] in self.tokens:
            return True
        if not self.strings or self.decode is None:
            return False
        tail = self.decode(last)
        return any(string in tail for string in self.strings)

    def cut(self, text: str) -> str:
        """A text up to the first stop string in it."""
        places = [place for place in map(text.find, self.strings) if place >= 0]
        return text[: min(places, default=len(text))]


class TextStream:
    """The text of one sequence, piece by piece: whole characters, and nothing of a stop string.

    Args:
        decode: Token ids to text.
        stop: What ends the sequence.
    """

    def __init__(self, decode: Decode, stop: Stop | None = None) -> None:
        self._decode = decode
        self._stop = stop or Stop()
        self._ids: list[int] = []
        self._said = 0  # characters

    def push(self, token: int) -> str:
        """What the next token adds; a character that needs more tokens, or may begin a stop string, waits for them."""
        self._ids.append(token)
        text = self._stop.cut(self._decode(self._ids))
        certain = self._held(text)
        new = self._say(certain)
        if len(self._ids) > _REMEMBERED and certain == text:  # all was said: the last tokens are enough from now on
            self._ids = self._ids[-_MARGIN:]
            self._said = len(self._decode(self._ids))
        return new

    def close(self) -> str:
        """What still waits; the sequence is over."""
        return self._say(self._stop.cut(self._decode(self._ids)))

    def _held(self, text: str) -> str:
        text = text.rstrip(_BROKEN)
        begun = (
            length
            for string in self._stop.strings
            for length in range(len(string) - 1, 0, -1)
            if text.endswith(string[:length])
        )
        return text[: len(text) - max(begun, default=0)]

    def _say(self, text: str) -> str:
        new = text[self._said :]
        self._said = max(self._said, len(text))
        return new
