"""Real runs that several tests look at."""

import pytest

from benchmarks.exact_resume import Campaign


@pytest.fixture(scope="session")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """Runs from the command line; undisturbed ones are made once for all tests that compare with them."""
    return Campaign(tmp_path_factory.mktemp("campaign"), seed=0)
