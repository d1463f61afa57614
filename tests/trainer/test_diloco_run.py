"""A real run of hosts that train by themselves, killed and resumed."""

import pytest

from benchmarks.exact_resume import Campaign
from benchmarks.exact_resume_cases import Case

pytestmark = pytest.mark.slow

CASE = Case("convnet", "bf16", 4, 1, "SIGKILL", comm="diloco, int4, streaming")


def test_a_killed_run_ends_in_the_same_bits(campaign: Campaign) -> None:
    _, found = campaign.run(CASE)
    assert found == []
