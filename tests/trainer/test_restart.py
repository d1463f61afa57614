"""A rank that is killed is restarted from where this launch is, not from what lies in the store beside it."""

from pathlib import Path

import psutil
import pytest

from benchmarks.exact_resume import GRADWIRE, Case, environment, finish, lines, train

pytestmark = pytest.mark.slow


def test_a_restart_before_the_first_save_repeats_the_resume_that_was_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    finish(train(folder, Case("decoder", "fp32", 1, 1, "SIGKILL").overrides()))
    command = [
        *GRADWIRE,
        "resume",
        f"{folder}@5",
        "launch.restarts=1",
        "checkpoint.every=null",
        "run.length=80 updates",
    ]
    process = psutil.Popen(command, env=environment(), stdout=-1, stderr=-2, text=True)
    while not any(line["update"] > 5 for line in lines(folder)) or lines(folder)[-1]["update"] > 20:
        assert process.poll() is None
    (worker,) = [child for child in process.children(recursive=True) if "gradwire.trainer.worker" in child.cmdline()]
    worker.kill()
    finish(process)
    log = (folder / "logs" / "rank-0.log").read_text()
    assert log.count("continuing from update 5") == 2
    assert "continuing from update 24" not in log
    assert [line["update"] for line in lines(folder)] == list(range(81))
