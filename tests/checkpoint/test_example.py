"""The example of the library alone, as a user runs it."""

import subprocess
import sys
from pathlib import Path

from gradwire.checkpoint import Checkpointer

EXAMPLE = Path(__file__).parents[2] / "examples" / "checkpoint_in_a_plain_loop.py"


def run(store: Path) -> list[str]:
    finished = subprocess.run([sys.executable, EXAMPLE, store], capture_output=True, text=True, check=True)
    return finished.stdout.splitlines()


def test_a_resumed_loop_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = run(tmp_path)
    assert undisturbed[-1].startswith("weights ")
    commits = Checkpointer(tmp_path).commits()
    assert commits[-1].update == 300
    for commit in commits[-2:]:
        (tmp_path / commit.name).unlink()
    resumed = run(tmp_path)
    assert resumed[0] == f"resumed at update {commits[-3].update}"
    assert resumed[-1] == undisturbed[-1]
