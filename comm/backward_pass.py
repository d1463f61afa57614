"""The backward pass that is under way, and its end."""

import weakref
from collections.abc import Callable

from torch.autograd import Variable


class BackwardPass:
    """Knows whether a backward is under way, and has something called when all of it is over.

    Args:
        ended: Called at the end of a backward that went well.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._at_end: Callable[[], object] = lambda: None  # gives None once the backward in progress is over

    @property
    def running(self) -> bool:
        """Whether the backward that was followed last is still under way."""
        return self._at_end() is not None

    def follow(self) -> None:
        """Within a backward: it is under way from now on, until it ends or fails."""

        def at_end() -> None:
            self._at_end = lambda: None
            self._ended()

        Variable._execution_engine.queue_callback(at_end)
        self._at_end = weakref.ref(at_end)  # the engine drops the callback where that backward fails
