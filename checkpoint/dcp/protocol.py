"""What Writer and Reader say to torch in the same way."""

import os
from typing import Any

from torch.futures import Future

from gradwire.checkpoint.errors import StoreError


def checked_update(update: object) -> int:
    """The number of an update, from what was given as such or as checkpoint_id.

    Raises:
        StoreError: it is none.
    """
    text = os.fspath(update) if isinstance(update, os.PathLike) else str(update)
    if isinstance(update, bool) or not text.isdecimal():
        raise StoreError(
            f"{text!r} is not the number of an update; checkpoint_id is one here, the URL goes to the class"
        )
    return int(text)


def completed(value: Any) -> Future[Any]:
    """A future that has its value, as torch wants it of work that is done."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future
