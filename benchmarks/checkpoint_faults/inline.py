"""Work for other threads done at once, so that a process does its operations in the same order every time.

A simulated disk answers at once, so that nothing is gained by asking it eight things together, and a machine that is
busy takes its time to begin eight threads for each question.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from gradwire.checkpoint import known, packs, recovery, snapshot


class _Inline(Executor):
    """Takes the place of a pool of threads."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "") -> None: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


@contextmanager
def without_pools() -> Iterator[None]:
    """Let gradwire.checkpoint begin no pools of threads. Its journal and its background keep their threads."""
    with ExitStack() as stack:
        for module in (known, packs, recovery, snapshot):
            stack.enter_context(mock.patch.object(module, "ThreadPoolExecutor", _Inline))
        yield
