"""A sample of benchmarks/exact_resume.py: real runs, killed and resumed, end in the bits of undisturbed ones."""

import json
from pathlib import Path

import pytest

from benchmarks.exact_resume import (
    Campaign,
    Case,
    Move,
    differences,
    disagreements,
    final_state,
    finish,
    interrupt,
    lines,
    resume,
    train,
)

pytestmark = pytest.mark.slow

CASES = [
    Case("decoder", "fp32", 1, 3, "SIGKILL"),
    Case("decoder", "bf16", 2, 1, "SIGTERM"),
    Case("convnet", "fp32", 4, 3, "SIGKILL"),
    Case("convnet", "bf16", 2, 3, "SIGTERM"),
    Case("decoder", "fp32", 2, 6, "SIGKILL", "noise_scale"),
    Case("decoder", "fp16", 4, 1, "SIGKILL", comm="codec top_k within hosts, int4 between"),
    Case("decoder", "fp32", 4, 1, "SIGKILL", comm="codec int4, one update late"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_interrupted_run_ends_in_the_same_bits(case: Case, tmp_path: Path) -> None:
    _, found = Campaign(tmp_path, seed=0).run(case)
    assert found == []


def test_a_run_resumed_on_more_ranks_sees_the_same_samples_and_losses(tmp_path: Path) -> None:
    _, found = Campaign(tmp_path, seed=0).move(Move(1, 3))
    assert found == []


def test_the_comparison_sees_another_loss_and_another_sample(tmp_path: Path) -> None:
    lines = [{"update": 1, "samples": 24, "train/loss": 5.0}, {"update": 2, "samples": 48, "train/loss": 4.0}]
    for name, changed in (("same", {}), ("loss", {"train/loss": 4.0001}), ("sample", {"samples": 49})):
        (tmp_path / name).mkdir()
        written = [lines[0], lines[1] | changed]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    assert disagreements(tmp_path / "same", tmp_path / "same") == []
    assert len(disagreements(tmp_path / "same", tmp_path / "loss")) == 1
    assert len(disagreements(tmp_path / "same", tmp_path / "sample")) == 1


def test_overtaken_lines_move_aside_and_no_update_is_logged_twice(tmp_path: Path) -> None:
    case = Case("decoder", "fp32", 1, 1, "SIGKILL")
    interrupt(train(tmp_path / "run", case.overrides()), tmp_path / "run", 13, "SIGKILL")
    resume(tmp_path / "run")
    updates = [line["update"] for line in lines(tmp_path / "run")]
    abandoned = [line["update"] for line in lines(tmp_path / "run", "metrics.abandoned.jsonl")]
    assert updates == list(range(25))
    assert abandoned[:3] == [11, 12, 13]


def test_the_comparison_sees_a_single_bit(tmp_path: Path) -> None:
    finish(train(tmp_path / "run", Case("decoder", "fp32", 1, 1, "SIGKILL").overrides()))
    left, right = final_state(tmp_path / "run"), final_state(tmp_path / "run")
    assert differences(left, right) == []
    name = next(iter(right["model"]))
    right["model"][name].view(-1)[0] += 1e-6
    assert differences(left, right) == [f"/model/{name}"]
