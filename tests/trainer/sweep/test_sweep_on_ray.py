"""The guide's sweep on Ray as it stands, with a rung: trials of two at once, whose ranks run in a real cluster."""

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

RUNG = ["sweep/pruner=hyperband", "sweep.pruner.factor=2", "sweep.pruner.rungs=1", "sweep.pruner.brackets=1"]
LENGTH = ["run.length=12 updates", "evaluation.every=4 updates"]
(COMMAND,) = re.findall(r"^gradwire sweep .*launch=ray.*$", "".join(BLOCKS), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_of_the_trials_run_in_the_cluster(tmp_path: Path) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        environ = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "RAY_ADDRESS": cluster.address}
        command = [str(Path(sys.executable).parent / "gradwire"), *shlex.split(COMMAND)[1:], *SHORT, *LENGTH, *RUNG]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        cluster.shutdown()
    sweep = Definition.read(tmp_path / "sweeps" / "ray")
    reached = {"COMPLETE": 12, "PRUNED": 6}  # the other one waited, and went on in the cluster
    trials = ledger_of(sweep).trials()
    assert {trial.state.name for trial in trials} == reached.keys()
    for trial in trials:
        folder = sweep.trial(trial.number).folder
        assert updates(folder) == list(range(reached[trial.state.name] + 1))
        assert "engine: ray" in (folder / "config.yaml").read_text()
