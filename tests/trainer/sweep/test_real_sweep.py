"""The guide's first commands as they stand, over real training runs: killed, resumed, shown, and the best taken."""

import csv
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.runs import lines
from gradwire.trainer.config import compose, validate

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "sweeps.md").read_text(), re.DOTALL | re.MULTILINE)
BEGIN, RESUME, MORE, SHOW, REPORT, BEST = [line.partition(" #")[0].strip() for line in BLOCKS[0].splitlines()]
SHORT = [
    "model=decoder_1m",
    "model.width=32",
    "model.layers=1",
    "data.context=32",
    "run.length=120 updates",  # which takes far longer than it takes to see that it has begun
    "run.log_every=1",
    "evaluation.every=40 updates",
    "evaluation.limit=16",
    "evaluation.samples=0",
    "checkpoint=journal",
    "launch.processes=1",
    "launch.device=cpu",
]


def start(folder: Path, command: str, *more: str) -> "subprocess.Popen[str]":
    program, *words = shlex.split(command)
    arguments = [str(Path(sys.executable).parent / program), *words, *more]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        arguments, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def call(folder: Path, command: str, *more: str) -> str:
    process = start(folder, command, *more)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def updates(run: Path) -> list[int]:
    return [line["update"] for line in lines(run)]


def last(run: Path) -> dict[str, float]:
    return lines(run)[-1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_is_killed_and_resumed_and_its_best_configuration_trains(tmp_path: Path) -> None:
    controller = start(tmp_path, BEGIN, *SHORT, "sweep.trials=2", "sweep/sampler=quasi")
    first = tmp_path / "sweeps" / "first" / "trials" / "0"
    deadline = time.monotonic() + 240
    while len(updates(first)) < 4:
        assert controller.poll() is None and time.monotonic() < deadline, controller.communicate()[0]
        time.sleep(0.01)
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    assert "experiment=best" in call(tmp_path, RESUME)
    launches = [json.loads(line) for line in (first / "launches.jsonl").read_text().splitlines()]
    assert [each.get("code") for each in launches] in ([None, None, None, 0], [None, 75, None, 0])
    assert updates(first) == list(range(121)) and not (first / "metrics.abandoned.jsonl").exists()

    large = "sweep.transfer=['batch.size=64','scaling=sqrt']"
    done = call(tmp_path, MORE.replace("trials=40", "trials=3"), large) + call(tmp_path, SHOW)
    assert "3/3 trials" in done and "experiment=best-transferred" in done and "at batch 64 by SquareRoot" in done
    rows = list(csv.DictReader(io.StringIO(call(tmp_path, SHOW, "--csv"))))
    told = json.loads(call(tmp_path, SHOW, "--json"))
    losses = [last(first.parent / str(number))["eval/loss"] for number in range(3)]
    assert [each["objectives"]["eval/loss"] for each in told["trials"]] == losses
    assert [float(each["eval/loss"]) for each in rows] == losses and [each["state"] for each in rows] == [
        "complete"
    ] * 3
    assert told["best"] == [losses.index(min(losses))]

    (moved,) = told["transfer"]
    assert moved["large"]["lr"] == pytest.approx(2 * moved["small"]["lr"])
    transferred = compose(["experiment=best-transferred"], tmp_path / "sweeps" / "first" / "best")
    assert validate(transferred).config["scaling"]["reference"] == 16

    call(tmp_path, REPORT)
    assert (tmp_path / "sweeps" / "first" / "report.html").exists()
    call(tmp_path, BEST, "run.dir=again")
    assert last(tmp_path / "again")["eval/loss"] == min(losses)
