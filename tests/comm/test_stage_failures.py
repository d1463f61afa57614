"""Ranks that die or stall, on real processes; benchmarks/comm_failures.py plays many more cases."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_survivors_of_dead_and_stopped_ranks_name_what_failed_in_time_and_exit(tmp_path):
    answer = tmp_path / "outcomes.json"
    phases = ("codec", "last all-gather", "between buckets")
    # This seed draws few ranks: rings of two and three and two axes, three algorithms, two codecs with residuals.
    command = [sys.executable, "-m", "benchmarks.comm_failures", "--cases", "6", "--seed", "174", "--json", str(answer)]
    command += ["--margin", "30"]  # what they are to do before they are taken to hang
    command += [word for phase in phases for word in ("--phase", phase)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads(answer.read_text())
    assert [outcome["case"]["phase"] for outcome in outcomes] == [phase for phase in phases for _ in range(2)]
    for outcome in outcomes:
        assert outcome["good"] and set(outcome["exits"]) == {0}
        assert all("failed on rank" in error for error in outcome["errors"])
