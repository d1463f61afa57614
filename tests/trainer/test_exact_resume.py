"""A sample of benchmarks/exact_resume.py: real runs, killed and resumed, end in the bits of undisturbed ones."""

from pathlib import Path

import pytest

from benchmarks.exact_resume import (
    Campaign,
    Case,
    differences,
    final_state,
    finish,
    interrupt,
    lines,
    losses,
    resume,
    train,
)

pytestmark = pytest.mark.slow

CASES = [
    Case("decoder", "fp32", 1, 3, "SIGKILL"),
    Case("decoder", "bf16", 2, 1, "SIGTERM"),
    Case("convnet", "fp32", 4, 3, "SIGKILL"),
    Case("convnet", "bf16", 2, 3, "SIGTERM"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_interrupted_run_ends_in_the_same_bits(case: Case, tmp_path: Path) -> None:
    _, found = Campaign(tmp_path, seed=0).run(case)
    assert found == []


def test_a_run_resumed_on_more_ranks_sees_the_same_samples_and_losses(tmp_path: Path) -> None:
    case = Case("decoder", "fp32", 1, 1, "SIGTERM")
    plain = [*case.overrides(), "model.dropout=0.0"]
    finish(train(tmp_path / "one", plain))
    interrupt(train(tmp_path / "moved", plain), tmp_path / "moved", 8, "SIGTERM")
    resume(tmp_path / "moved", "launch.processes=3", "batch.micro=8")
    one, moved = losses(tmp_path / "one"), losses(tmp_path / "moved")
    assert one.keys() == moved.keys()
    for (update, name), value in one.items():
        if name in ("samples", "lr", "batch_size"):
            assert moved[update, name] == value
        else:
            assert moved[update, name] == pytest.approx(value, rel=1e-5)


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
