"""A real process that saves is killed at random moments; the store stays whole."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradwire.checkpoint import Checkpointer, NoCheckpoint
from tests.checkpoint.states import same_state, state_at

ROOT = Path(__file__).parents[2]
SAVER = """
import sys
from pathlib import Path
from gradwire.checkpoint import Checkpointer, NoCheckpoint
from tests.checkpoint.states import state_at
checkpointer = Checkpointer(sys.argv[1], keep_last=2)
try:
    update = checkpointer.restore()[1].update
except NoCheckpoint:
    update = 0
print("ready", flush=True)
before = None
while True:
    update += 1
    if sys.argv[2] == "save":
        checkpointer.save(state_at(update, 2_000_000), {"updates": update}, {"eval/loss": 1 / update})
        print(update, flush=True)
    else:
        saving = checkpointer.start(state_at(update, 2_000_000), {"updates": update}, {"eval/loss": 1 / update})
        if before is not None:
            print(before.wait().update, flush=True)
        before = saving
"""


@pytest.mark.slow
@pytest.mark.parametrize(("call", "unheard"), [("save", 1), ("start", 2)])
def test_kill_9_at_random_moments_leaves_the_newest_commit_whole(call: str, unheard: int, tmp_path: Path) -> None:
    moments = random.Random(0)
    acknowledged = 0
    for awaited in (1, 1, 1, 1, 1, 1, 2):  # lines: that it is ready, and at last that an update is saved
        log = tmp_path / "log"
        with log.open("w") as out:
            command = [sys.executable, "-c", SAVER, str(tmp_path / "store"), call]
            process = subprocess.Popen(command, stdout=out, cwd=ROOT)
        while log.read_text().count("\n") < awaited and process.poll() is None:
            time.sleep(0.02)
        time.sleep(moments.uniform(0.0, 0.6))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        acknowledged = max([acknowledged, *(int(line) for line in log.read_text().split() if line.isdigit())])
        checkpointer = Checkpointer(str(tmp_path / "store"))
        try:
            state, commit = checkpointer.restore()
        except NoCheckpoint:
            assert acknowledged == 0
            continue
        assert checkpointer.damaged == ()
        assert acknowledged <= commit.update <= acknowledged + unheard
        assert same_state(state, state_at(commit.update, 2_000_000))
        acknowledged = commit.update  # what was restored here stays, also where nobody had told of it
    assert acknowledged > 0
    resumed = Checkpointer(str(tmp_path / "store"), keep_last=2)
    update = resumed.restore()[1].update + 1
    resumed.save(state_at(update), {"updates": update})
    assert not list((tmp_path / "store").rglob(".tmp-*")), "the next writer cleans up"
    assert len(list((tmp_path / "store" / "parts").iterdir())) == len(resumed.commits())
