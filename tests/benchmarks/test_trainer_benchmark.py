import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_contestant_trains_and_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    options = ["--sizes", "tiny", "--rounds", "2", "--memory", "gradwire", "--json", str(output)]
    command = [sys.executable, "-m", "benchmarks.trainer", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(output.read_text())["tiny"]
    assert rows.keys() == {"bare", "gradwire", "fabric", "lightning", "huggingface"}
    assert all(len(row["seconds"]) == 2 and row["ms"] > 0 for row in rows.values())
    assert rows["gradwire"]["peak_mib"] > 0 and rows["bare"]["peak_mib"] is None
    assert rows["bare"]["ratio"] == [1.0, 1.0, 1.0]
