"""Real processes joined by gloo, started once and used by many tests."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.ranks import pools_of_ranks

settings.register_profile("at any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("at any speed")


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[..., None]]:
    """`ranks(size, function, *arguments)` calls `function(rank, *arguments)` on `size` ranks."""
    yield from pools_of_ranks()
