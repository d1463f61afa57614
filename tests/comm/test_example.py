import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "attach_to_a_plain_script.py"


@pytest.mark.slow
def test_the_plain_script_trains_on_two_processes():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(EXAMPLE)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+), the same bits everywhere", done.stdout)]
    assert len(losses) == 2
    first = float(re.search(r"update   0  loss (\d+\.\d+)", done.stdout).group(1))
    assert max(losses) < first / 5


def test_it_is_three_lines():
    assert sum(line.endswith("# +") for line in EXAMPLE.read_text().splitlines()) == 3
