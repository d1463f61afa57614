"""Listings that show what was there some time ago."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.checkpoint_faults.bucket import Bucket, Client, Stale, over
from gradwire.checkpoint import CheckpointWriteError, StoreUnavailable, WriterFenced


def lagging(age: int, times: int, folder: str = "commits") -> Callable[[int, Any], Stale | None]:
    """Show the first so many listings as they were `age` changes ago."""
    left = times

    def hook(_: int, request: Any) -> Stale | None:
        nonlocal left
        if request.kind != "list" or not request.path.endswith(folder) or left == 0:
            return None
        left -= 1
        return Stale(age)

    return hook


def saved(*updates: int) -> Bucket:
    bucket = Bucket()
    session = over(Client(bucket))
    for update in updates:
        session.save(update)
    return bucket


@pytest.mark.parametrize("age", range(1, 8))
def test_the_newest_snapshot_is_restored_whatever_the_listing_shows(age: int) -> None:
    bucket = saved(1, 2, 3)
    assert over(Client(bucket, lagging(age, 99))).restore() == 3


def test_a_writer_that_read_an_old_listing_does_not_take_a_number_that_pruning_freed() -> None:
    bucket = saved(*range(1, 9))
    session = over(Client(bucket, lagging(len(bucket.past) - 4, 1)))  # it shows the first claim alone
    with pytest.raises(CheckpointWriteError, match="start this one again") as raised:
        session.save(9)
    assert isinstance(raised.value, WriterFenced)
    again = over(Client(bucket))
    assert again.restore() == 8
    again.save(9)
    assert over(Client(bucket)).restore() == 9
    assert again.verify() == []


def test_a_store_that_never_lists_what_was_just_written_is_not_written_to() -> None:
    bucket = saved(1)
    session = over(Client(bucket, lagging(3, 99)))
    with pytest.raises(CheckpointWriteError, match="its listings lag behind") as raised:
        session.save(2)
    assert isinstance(raised.value.__cause__, StoreUnavailable)
    assert over(Client(bucket)).restore() == 1
