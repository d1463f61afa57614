"""Real processes joined by gloo, started once and used by many tests."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.ranks import pools_of_ranks

# torch makes this folder where it is imported; tests that look at what a command leaves in TMPDIR are not to find it.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "torchinductor-of-tests"))
# A shell that starts the tests in the background has them ignore Ctrl-C, and so would the commands that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("at any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("at any speed")


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[..., None]]:
    """`ranks(size, function, *arguments)` calls `function(rank, *arguments)` on `size` ranks."""
    yield from pools_of_ranks()
