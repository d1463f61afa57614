"""Free space, looked at before anything is written."""

import os
import shutil
import socket
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from gradwire.checkpoint.errors import StoreFull
from gradwire.checkpoint.memory import SHARED_MEMORY


@dataclass(frozen=True)
class Demand:
    """What one rank is about to write.

    Args:
        place: Names the file system that it goes to; ranks of equal place share its free space.
        free: Bytes that are free there.
        needed: Bytes that are to be written, estimated.
    """

    place: str
    free: int
    needed: int

    def times(self, factor: float) -> "Demand":
        """The same, should that many bytes be written for each one."""
        return Demand(self.place, self.free, int(self.needed * factor))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def demand(url: str, needed: int) -> Demand | None:
    """What writing `needed` bytes to a store asks of the file system; None where free space has no meaning.

    Args:
        url: The store's: local paths have free space, object stores and memory do not.
        needed: Bytes.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    filesystem, root = url_to_fs(url)
    if not isinstance(filesystem, LocalFileSystem):
        return None
    folder = Path(root)
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    place = f"{socket.gethostname()}:{os.stat(folder).st_dev}"  # noqa: PTH116 - a number, not a path
    free = shutil.disk_usage(folder).free
    if folder.resolve().is_relative_to(SHARED_MEMORY):  # it may be as large as it likes: its pages are memory
        free = min(free, psutil.virtual_memory().available)
    return Demand(place, free, needed)


def check(url: str, demands: Iterable[Demand | None]) -> None:
    """Compare what all ranks are about to write with what is free.

    Raises:
        StoreFull: it does not fit.
    """
    places: dict[str, list[Demand]] = defaultdict(list)
    for each in demands:
        if each is not None:
            places[each.place].append(each)
    for found in places.values():
        needed, free = sum(each.needed for each in found), min(each.free for each in found)
        if needed > free:
            raise StoreFull(
                f"{url}: No space left on device for this snapshot: it takes about {needed} bytes, and {free} are "
                "free. Free space there, or choose another URL"
            )
