"""Processes that only one file's tests use, and a laboratory of networks."""

from collections.abc import Callable, Iterator

import pytest

from tests.comm.netlab import lab_ranks, netlab
from tests.ranks import pools_of_ranks

__all__ = ["lab_ranks", "netlab"]  # fixtures


@pytest.fixture(scope="module")
def own_ranks() -> Iterator[Callable[..., None]]:
    """The same with processes that other files do not use, for tests whose groups outlive them."""
    yield from pools_of_ranks()
