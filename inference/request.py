"""What an engine is asked for, and where it stands."""

from collections import deque
from dataclasses import dataclass, field

from gradwire.inference.caches import Pool, Table
from gradwire.inference.completion import Finish
from gradwire.inference.errors import InferenceError
from gradwire.inference.sampling import Sampling
from gradwire.inference.stopping import Stop


@dataclass(frozen=True)
class Request:
    """A prompt to continue.

    Args:
        prompt: Token ids, at least one.
        max_new_tokens: Most tokens to add, at least one.
        sampling: How tokens are chosen.
        seed: What it draws depends on this and on positions alone.
        stop: What ends it early.

    Raises:
        InferenceError: a value is out of range.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stop: Stop = field(default_factory=Stop)

    def __post_init__(self) -> None:
        if not self.prompt or self.max_new_tokens < 1:
            raise InferenceError(
                "a request needs at least one token of prompt and one new one, found "
                f"{len(self.prompt)} and {self.max_new_tokens}"
            )


class RequestState:
    """Where a request stands."""

    def __init__(self, number: int, request: Request, pool: Pool) -> None:
        self.number = number
        self.request = request
        self.ids = list(request.prompt)
        self.table = Table(pool)
        self._pool = pool
        self.last: deque[int] = deque(maxlen=request.stop.span)

    @property
    def to_compute(self) -> list[int]:
        """Tokens whose keys and values are not stored."""
        return self.ids[self.table.tokens :]

    @property
    def needed(self) -> int:
        """Blocks that are missing for them."""
        return self._pool.needed(len(self.ids)) - len(self.table.blocks)

    def add(self, token: int) -> Finish | None:
        """One more token; why the sequence ends with it."""
        self.ids.append(token)
        self.last.append(token)
        if self.request.stop.ends(tuple(self.last)):
            return "stop"
        new = len(self.ids) - len(self.request.prompt)
        return "length" if new == self.request.max_new_tokens else None
