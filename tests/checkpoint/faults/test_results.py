"""What docs/checkpoints.md says of faults is what was measured, and every one was survived."""

import json
from pathlib import Path

from benchmarks.checkpoint_faults.__main__ import BIT_FLIPS, page
from benchmarks.checkpoint_faults.bucket_faults import BUCKET_FAULTS
from benchmarks.checkpoint_faults.classes import CLASSES, by_class
from benchmarks.checkpoint_faults.disk_faults import DISK_FAULTS
from benchmarks.checkpoint_faults.races import JOURNAL_RACES, RACES

ROOT = Path(__file__).parents[3]
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "checkpoint_faults.json").read_text())


def test_the_tables_of_the_docs_are_the_results() -> None:
    docs = (ROOT / "docs" / "checkpoints.md").read_text()
    assert all(line in docs for line in page(RESULTS).splitlines())
    assert f"{sum(row['injected'] for row in RESULTS['faults']):,} faults" in docs


def test_all_that_can_be_injected_was_and_all_of_it_was_survived() -> None:
    ours = [row for row in RESULTS["faults"] if row["contender"].startswith("gradwire")]
    every = {fault.name for fault in (*DISK_FAULTS, *BUCKET_FAULTS, *RACES, *JOURNAL_RACES)}
    assert every <= {row["fault"] for row in ours}
    assert {(row["contender"], row["fault"]) for row in ours if row["survived"] < row["injected"]} == set()
    assert list(by_class(RESULTS["faults"])) == [each.name for each in CLASSES]


def test_every_flipped_bit_was_detected() -> None:
    ours = [row for row in RESULTS[BIT_FLIPS] if row["contender"] == "gradwire"]
    assert {row["region"] for row in ours} == {"packs", "parts", "commits", "journal", "tags"}
    assert all(row["detected"] == row["flipped"] > 200 for row in ours)
