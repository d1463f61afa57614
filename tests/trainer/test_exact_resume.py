"""A sample of benchmarks/exact_resume.py: real runs, killed and resumed, end in the bits of undisturbed ones."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.comparison import differences, disagreements, final_state, losses
from benchmarks.exact_resume import Campaign
from benchmarks.exact_resume_cases import Case, Move
from benchmarks.runs import lines, resume, train_until
from gradwire.checkpoint import Checkpointer

pytestmark = pytest.mark.slow

KILLED = Case("decoder", "fp32", 1, 6, "SIGKILL", "noise_scale")
CASES = [
    Case("convnet", "bf16", 2, 3, "SIGTERM", comm="codec int4 on a ring, one update late"),
    Case("decoder", "fp16", 4, 3, "SIGKILL", comm="codec top_k within hosts, int4 between"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_interrupted_run_ends_in_the_same_bits(case: Case, campaign: Campaign) -> None:
    _, found = campaign.run(case)
    assert found == []


class Killed(NamedTuple):
    """A run on one rank that was killed and resumed."""

    folder: Path
    saved: int  # the update of its newest snapshot when it was killed
    logged: int  # the last update in its log by then


@pytest.fixture(scope="module")
def killed(campaign: Campaign) -> Killed:
    folder = campaign.folder / "killed"
    train_until(folder, KILLED.overrides(), 13, KILLED.how)
    _, commit = Checkpointer(str(folder / "checkpoints")).restore("latest")
    run = Killed(folder, int(commit.clock["updates"]), lines(folder)[-1]["update"])
    resume(folder)
    return run


def test_a_killed_run_whose_batch_follows_the_noise_scale_ends_in_the_same_bits(
    killed: Killed, campaign: Campaign
) -> None:
    whole = campaign.undisturbed(KILLED)
    assert differences(final_state(whole), final_state(killed.folder)) == []
    assert losses(whole) == losses(killed.folder)


def test_overtaken_lines_move_aside_and_no_update_is_logged_twice(killed: Killed) -> None:
    updates = [line["update"] for line in lines(killed.folder)]
    abandoned = [line["update"] for line in lines(killed.folder, "metrics.abandoned.jsonl")]
    assert updates == list(range(updates[-1] + 1))
    assert killed.saved % 5 == 0 and killed.logged >= 13
    assert abandoned == list(range(killed.saved + 1, killed.logged + 1)) != []


def test_a_run_resumed_on_more_ranks_sees_the_same_samples_and_losses(campaign: Campaign) -> None:
    _, found = campaign.run(Move(1, 3))
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


def test_the_comparison_sees_a_single_bit(campaign: Campaign) -> None:
    whole = campaign.undisturbed(KILLED)
    left, right = final_state(whole), final_state(whole)
    assert differences(left, right) == []
    name = next(iter(right["model"]))
    right["model"][name].view(-1)[0] += 1e-6
    assert differences(left, right) == [f"/model/{name}"]
