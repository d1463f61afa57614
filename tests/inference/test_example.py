"""The example of the library alone, as a user runs it."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "generate_in_a_plain_script.py"


def test_a_model_of_ones_own_learns_and_generates() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True)
    loss, *texts = done.stdout.splitlines()
    assert float(loss.removeprefix("loss ")) < 1.0
    assert len(texts) >= 4
    assert any(word in done.stdout for word in ("question", "nobler", "not to be"))
