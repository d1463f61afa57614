"""Which cache generation uses, as configuration."""

from dataclasses import dataclass
from typing import Literal

from gradwire.inference.caches.cache import Cache
from gradwire.inference.caches.contiguous import Contiguous
from gradwire.inference.caches.int8 import Int8
from gradwire.inference.caches.paged import Paged
from gradwire.inference.caches.pool import Pool, Table
from gradwire.inference.caches.static import Static
from gradwire.inference.caches.storage import MakeStorage, Plain
from gradwire.inference.caches.window import Window
from gradwire.inference.errors import CacheFullError, InferenceError
from gradwire.inference.model import Layout

Kind = Literal["contiguous", "static", "paged", "none"]
Limit = Literal["error", "window"]
KINDS: tuple[Kind, ...] = ("contiguous", "static", "paged", "none")
LIMITS: tuple[Limit, ...] = ("error", "window")
PRECISIONS = ("model", "int8")
_STATIC = 64  # tokens, of which the length of a static cache is a multiple


@dataclass(frozen=True)
class Caching:
    """What keeps the keys and values of past tokens, and what happens past its end.

    Args:
        kind: `contiguous` memory for each sequence; `static`, the same with shapes that never change; `paged`, blocks
            of a pool; `none` computes everything again for every token.
        limit: What happens to a sequence longer than `length`: `error` refuses it before anything is computed; `window`
            goes on with the first `kept` tokens and the last ones.
        length: Most tokens of a sequence that are kept; None takes the model's context, and no more than needed.
        kept: First tokens that a window never lets go.
        precision: `model` keeps the numbers as they are; `int8` in eight bits.
        block: Tokens of a block of the pool.

    Raises:
        InferenceError: a value is out of range, or two contradict each other.
    """

    kind: Kind = "contiguous"
    limit: Limit = "error"
    length: int | None = None
    kept: int = 4
    precision: Literal["model", "int8"] = "model"
    block: int = 16

    def __post_init__(self) -> None:
        for name, value, known in (
            ("cache", self.kind, KINDS),
            ("limit", self.limit, LIMITS),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in known:
                raise InferenceError(f"{name} must be one of {', '.join(known)}, found {value!r}")
        for name, number, least in (("length", self.length, 1), ("kept", self.kept, 0), ("block", self.block, 1)):
            if number is not None and number < least:
                raise InferenceError(f"{name} must be at least {least}, found {number}")

    def make(self, layout: Layout, rows: int, tokens: int) -> Cache:
        """A cache for so many sequences of up to so many tokens each.

        Raises:
            CacheFullError: they are too long, and the limit is an error.
            InferenceError: this kind of cache has no window.
            UnsuitedModelError: the model cannot have a window.
        """
        most = min((n for n in (self.length, layout.context) if n is not None), default=tokens)
        if tokens <= most:
            return self._whole(layout, rows, tokens)
        if self.limit == "error":
            raise CacheFullError(
                f"prompt and new tokens make {tokens}, but {self._of(most, layout)}: shorten them, or keep a window "
                "(limit='window')"
            )
        if self.kind != "contiguous":
            raise InferenceError(f"a window is contiguous, but cache={self.kind!r} was asked for")
        return Window(layout, rows, most, self.storage, min(self.kept, most - 1))

    @property
    def storage(self) -> MakeStorage:
        """How keys and values lie in memory."""
        return Int8 if self.precision == "int8" else Plain

    def _of(self, most: int, layout: Layout) -> str:
        return f"length is {most}" if most == self.length else f"the model's context is {layout.context}"

    def _whole(self, layout: Layout, rows: int, tokens: int) -> Cache:
        if self.kind == "paged":
            pool = Pool(layout, rows * -(-tokens // self.block), self.block, self.storage)
            return Paged(pool, [Table(pool) for _ in range(rows)])
        if self.kind == "static":  # of few lengths: for each a step is compiled
            return Static(layout, rows, -(-tokens // _STATIC) * _STATIC, self.storage)
        return Contiguous(layout, rows, tokens, self.storage)
