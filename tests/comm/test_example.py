import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAIN = EXAMPLES / "attach_to_a_plain_script.py"


def _on_two_processes(example):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(example)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_plain_script_trains_on_two_processes():
    printed = _on_two_processes(PLAIN)
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+), the same bits everywhere", printed)]
    assert len(losses) == 2
    first = float(re.search(r"update   0  loss (\d+\.\d+)", printed).group(1))
    assert max(losses) < first / 5


@pytest.mark.slow
@pytest.mark.parametrize("example", ["ddp_hook_lightning.py", "ddp_hook_hf_trainer.py"])
def test_the_hook_trains_in_another_trainer_on_two_processes(example):
    right = re.findall(r"rank (\d) of 2: (\d+\.\d)% of the digits right", _on_two_processes(EXAMPLES / example))
    assert sorted(rank for rank, _ in right) == ["0", "1"]
    assert all(float(share) > 85 for _, share in right)


def test_it_is_three_lines():
    assert sum(line.endswith("# +") for line in PLAIN.read_text().splitlines()) == 3
