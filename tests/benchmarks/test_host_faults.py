"""A sample of the campaign in which hosts are lost and join: one of each, in one run."""

import json
from pathlib import Path

import pytest

from benchmarks.host_events import CASES, Case, Event, host_joined, joined_host_killed
from benchmarks.host_faults import Campaign, to_markdown
from benchmarks.netlab import Netlab
from tests.comm.netlab import netlab

__all__ = ["netlab"]  # a fixture
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_run_that_a_host_joins_and_leaves_dead_ends_as_an_undisturbed_one(
    netlab: type[Netlab], tmp_path: Path
) -> None:
    joins = Event("a host joins", host_joined, "", planned=True)
    killed = Event("it is killed", joined_host_killed, "")
    with netlab(hosts=2, rate="1gbit") as lab:
        results = Campaign(lab, tmp_path, updates=40).run(Case((joins, killed), hosts=(0,), pace=1.0))
    assert [(result.survived, result.wrong) for result in results] == [(True, [])] * 2
    assert [result.hosts for result in results] == [[2], [1]] and all(result.seconds[0] > 0 for result in results)
    assert results[0].lost == 0 and results[1].lost <= 1


def test_the_table_of_the_guide_is_that_of_the_campaign() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "host_faults.json").read_text())
    assert [result["event"] for result in results] == [event.name for case in CASES for event in case.events]
    assert to_markdown(results) in (ROOT / "docs" / "elastic.md").read_text()
