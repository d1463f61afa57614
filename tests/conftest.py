"""Real processes joined by gloo, started once and used by many tests."""

from collections.abc import Callable, Iterator

import pytest

from tests.ranks import pools_of_ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[..., None]]:
    """`ranks(size, function, *arguments)` calls `function(rank, *arguments)` on `size` ranks."""
    yield from pools_of_ranks()
