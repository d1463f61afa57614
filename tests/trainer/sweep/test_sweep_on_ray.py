"""The guide's sweep on Ray as it stands: trials of two at once, whose ranks run in a real cluster."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.trainer.sweep.definition import Definition
from tests.trainer.sweep.test_real_sweep import BLOCKS, SHORT, updates
from tests.trainer.sweep.toy import ledger_of

(COMMAND,) = re.findall(r"^gradwire sweep .*launch=ray.*$", "".join(BLOCKS), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ranks_of_the_trials_run_in_the_cluster(tmp_path: Path) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        environ = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "RAY_ADDRESS": cluster.address}
        command = [str(Path(sys.executable).parent / "gradwire"), *shlex.split(COMMAND)[1:], *SHORT]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        cluster.shutdown()
    sweep = Definition.read(tmp_path / "sweeps" / "ray")
    assert [trial.state.name for trial in ledger_of(sweep).trials()] == ["COMPLETE", "COMPLETE"]
    for number in range(2):
        folder = sweep.trial(number).folder
        assert updates(folder) == list(range(13))
        assert "engine: ray" in (folder / "config.yaml").read_text()
