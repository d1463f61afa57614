import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "plan_in_a_plain_loop.py"


def test_the_example_trains_to_the_end_of_its_plan() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, env=environment, check=True)
    *lines, last = run.stdout.splitlines()
    done, planned, samples = map(int, re.findall(r"\d+", last)[:3])
    assert done == planned
    assert samples == 60_000
    assert "batch   8  lr 0.00001" in lines[0]
    assert "batch 128" in lines[-1]
    losses = [float(line.rpartition(" ")[2]) for line in lines]
    assert losses[-1] < losses[0] / 10
