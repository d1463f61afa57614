"""DeepSpeed from the command line: a user's JSON, offload at stage 3, evaluation, and on under ddp."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")

JSON = Path(__file__).parents[2] / "examples" / "deepspeed_zero3.json"
MODEL = ("model.width=40", "model.layers=2", "data.context=16", "batch.size=8", "batch.micro=2")
SMALL = (*MODEL, "launch.processes=2", "launch.device=cpu", "ema=0.9", "activation_checkpointing=true")


def gradwire(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from gradwire.trainer.cli import main; main()", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_a_run_under_the_users_json_goes_on_under_ddp(tmp_path: Path) -> None:
    run = [*SMALL, "run.dir=run", "run.log_every=1", "run.length=8 updates"]
    often = ["evaluation.every=4 updates", "checkpoint.every=4 updates"]
    begun = gradwire("train", *run, *often, "strategy=deepspeed", f"strategy.config={JSON}", cwd=tmp_path)
    assert begun.returncode == 0, begun.stderr[-3000:]
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["strategy"]["config"] == json.loads(JSON.read_text())
    moved = gradwire("resume", "run", "strategy=ddp", "run.length=12 updates", cwd=tmp_path)
    assert moved.returncode == 0, moved.stderr[-3000:]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = {record["update"]: record["train/loss"] for record in records if "train/loss" in record}
    assert sorted(losses) == list(range(1, 13))
    assert losses[12] < losses[1]
    evaluated = {record["update"]: record["eval/loss"] for record in records if "eval/loss" in record}
    assert evaluated[12] < evaluated[4]
