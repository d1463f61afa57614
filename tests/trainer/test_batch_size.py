"""`gradwire batch-size` as users run it: real processes, a small model, two ranks."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from unittest import mock

import pytest
import torch
from PIL import Image
from torch import nn

from gradwire.schedulers import Plan
from gradwire.trainer import plots
from gradwire.trainer.batch_size import refusal
from gradwire.trainer.noise_survey import survey
from gradwire.trainer.recommendation import command
from gradwire.trainer.rehearsal import Rehearsal, doublings, optimizer_state_allocated
from gradwire.trainer.trainer import Trainer
from tests.trainer.commands import gradwire

GRADWIRE = [sys.executable, "-c", "from gradwire.trainer.cli import main; main()"]
SMALL = ["model=decoder_1m", "model.width=32", "model.layers=1", "model.heads=2", "model.kv_heads=1", "data.context=32"]
SHORT_OF_MEMORY = """
import torch
from torch import distributed, nn

class Greedy(nn.Module):
    default_loss = "classification"

    def __init__(self, most: int = 12) -> None:
        super().__init__()
        self.most, self.layer = most, nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        if len(image) > self.most and distributed.get_rank() == 1:
            raise torch.OutOfMemoryError("out of memory")
        return self.layer(image.flatten(1))
"""


def batch_size(*arguments, cwd, **environ):
    return subprocess.run(
        [*GRADWIRE, "batch-size", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(cwd), **environ},
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batch-size")
    arguments = ["launch.processes=2", "batch.size=16", "--updates", "8", "--json", "b.json", "--png", "b.png"]
    done = batch_size(*SMALL, *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done, json.loads((folder / "b.json").read_text()), folder


def test_every_size_up_to_the_largest_is_timed(measured):
    _, record, _ = measured
    speeds = record["speeds"]
    assert record["largest_micro_batch"] == record["limit"] == 8  # two ranks share 16
    assert [speed["micro_batch"] for speed in speeds] == [1, 2, 4, 8][: len(speeds)] and len(speeds) >= 3
    for speed in speeds:
        assert speed["passes"] >= 3
        assert speed["samples_per_second"] == pytest.approx(2 * speed["micro_batch"] / speed["seconds"])
        assert speed["tokens_per_second"] == pytest.approx(32 * speed["samples_per_second"])


def test_the_noise_scale_is_that_of_the_gradient_after_the_updates(measured):
    _, record, _ = measured
    noise = record["noise"]
    assert record["updates"] == 8 and record["world_size"] == 2
    assert noise["variance"] > 0 and noise["gradient"] > 0
    assert noise["noise_scale"] == pytest.approx(noise["variance"] / noise["gradient"])
    assert noise["enough"] == (4 * noise["noise_scale"] <= noise["samples"])


def test_the_screen_says_what_follows_why_and_what_to_type(measured):
    done, record, _ = measured
    advice = record["recommendation"]
    assert f"{record['noise']['noise_scale']:,.1f} samples" in done.stdout
    assert "measured after 8 of 600 updates" in " ".join(done.stdout.split())
    for name in ("micro-batch", "global batch", "learning rate", "warm-up"):
        assert f"  {name} " in done.stdout
    assert done.stdout.splitlines()[-1] == record["command"]
    assert record["command"].startswith("gradwire train model=decoder_1m")
    assert f"batch.size={advice['batch_size']} " in record["command"]
    assert "batch.size=16 " not in record["command"] or advice["batch_size"] == 16


def test_what_is_recommended_is_a_configuration(measured, tmp_path):
    _, record, _ = measured
    words = shlex.split(record["command"])
    plan = gradwire("plan", *words[2:], "--json", "p.json", cwd=tmp_path)
    assert plan.returncode == 0, plan.stderr
    totals = json.loads((tmp_path / "p.json").read_text())["totals"]
    advice = record["recommendation"]
    assert (totals["largest_batch"], totals["micro_batch"]) == (advice["batch_size"], advice["micro_batch"])
    assert totals["samples"] == 600 * 16


def test_the_picture_opens_in_its_size(measured):
    with Image.open(measured[2] / "b.png") as image:
        assert (image.format, image.size) == ("PNG", plots.SIZE)
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50


def test_nothing_but_the_files_asked_for_is_left(measured):
    left = {path.name for path in measured[2].iterdir() if not path.name.startswith("torch")}  # torch's own cache
    assert left == {"b.json", "b.png"}


def test_all_ranks_agree_where_one_runs_out_of_memory(tmp_path):
    (tmp_path / "greedy.py").write_text(SHORT_OF_MEMORY)
    model = ["model._target_=greedy.Greedy", "allow_targets=[greedy]"]
    drop = [f"~model.{key}" for key in ("channels", "classes", "width", "stages", "blocks", "dropout")]
    arguments = ["experiment=digits", *model, *drop, "batch.size=64", "launch.processes=2", "--json", "b.json"]
    done = batch_size(*arguments, "--updates", "2", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "b.json").read_text())
    assert (record["largest_micro_batch"], record["limit"]) == (12, 32)
    assert "12 samples: memory ends there" in done.stdout
    assert record["updates"] == 2 and max(speed["micro_batch"] for speed in record["speeds"]) <= 12


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["optimizer.lrr=1"], "optimizer.lr"),
        (["--updates", "-1"], "--updates"),
        (["--json", "nowhere/b.json"], "nowhere"),
        (["--png", "nowhere/b.png"], "nowhere"),
    ],
)
def test_a_mistake_is_refused_with_2_before_anything_is_measured(tmp_path, monkeypatch, arguments, said):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = gradwire("batch-size", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_picture_without_matplotlib_is_refused_before_anything_is_measured(tmp_path):
    with mock.patch("importlib.util.find_spec", lambda name: None):
        done = gradwire("batch-size", *SMALL, "--png", "b.png", cwd=tmp_path)
    assert done.returncode == 2 and "pip install 'gradwire[plot]'" in done.stderr and "timing" not in done.stderr


def test_the_command_ends_with_what_changes():
    typed = ["model=convnet", "batch.size=8", "+optimizer.lr=1", "run.name=a b"]
    assert command(typed, ["batch.size=16", "optimizer.lr=2"]) == (
        "gradwire train model=convnet 'run.name=a b' batch.size=16 optimizer.lr=2"
    )


class Pairs(torch.utils.data.Dataset):
    """x and y with y = x·1 + noise: the gradient's mean and covariance at w = 0 are known."""

    def __init__(self, count: int, dimensions: int, spread: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.targets = 1.0 + spread * torch.randn(count, dimensions, generator=generator)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.targets[index]


class Mean(nn.Module):
    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(dimensions))
        self.norm = nn.BatchNorm1d(dimensions, affine=False)

    def forward(self, targets: torch.Tensor) -> torch.Tensor:
        self.norm(targets)
        return 0.5 * (self.place - targets).square().sum(-1)


def mean_trainer(spread: float = 3.0) -> Trainer:
    model = Mean(16)
    plan = Plan(lr=0.01, batch=8, run_length="10 updates")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Trainer(model, Pairs(20_000, 16, spread), optimizer, plan, loss=lambda model, batch: model(batch))


def test_the_survey_finds_a_known_noise_scale_and_changes_nothing():
    trainer = mean_trainer()
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    found = survey(trainer, micro=64, most=4096, check=lambda what: None)
    assert found.noise_scale == pytest.approx(9.0, rel=0.15)  # tr Σ / ‖μ‖² = 16·3² / 16
    assert found.variance == pytest.approx(16 * 9.0, rel=0.1) and found.gradient == pytest.approx(16.0, rel=0.2)
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert trainer.model.place.grad is None and trainer.clock.samples == 0


def test_the_survey_takes_more_samples_until_they_are_enough():
    said: list[str] = []
    found = survey(mean_trainer(spread=20.0), micro=4, most=4096, check=said.append)
    assert found.enough and found.samples >= 1600 and len(said) > 1
    assert found.noise_scale == pytest.approx(400.0, rel=0.5)
    too_few = survey(mean_trainer(spread=200.0), micro=4, most=100, check=said.append)
    assert not too_few.enough and too_few.samples <= 100


def test_optimizer_state_is_there_while_measuring_and_gone_afterwards():
    trainer = mean_trainer()
    nn.init.normal_(trainer.model.place)
    before = trainer.model.place.detach().clone()
    with optimizer_state_allocated(trainer):
        assert trainer.optimizer.state[trainer.model.place]["exp_avg"].shape == (16,)
        assert torch.equal(trainer.model.place, before)
    assert not trainer.optimizer.state and trainer.optimizer.param_groups[0]["lr"] == 0.01
    assert torch.equal(trainer.model.place, before) and trainer.model.place.grad is None


def test_timing_stops_where_two_sizes_in_a_row_gain_nothing(monkeypatch):
    rehearsal = Rehearsal(mean_trainer())
    rates = dict(zip([1, 2, 4, 8, 16, 32], [10.0, 20.0, 20.1, 25.0, 25.1, 24.0], strict=True))
    seconds = {size: size / rate for size, rate in rates.items()}
    real = rehearsal.speed(2)
    assert real.passes >= 3 and real.samples_per_second == pytest.approx(2 / real.seconds)
    monkeypatch.setattr(rehearsal, "_timed", lambda batch: seconds[len(batch)])
    assert [speed.micro_batch for speed in rehearsal.speeds([1, 2, 4, 8, 16, 32, 64])] == [1, 2, 4, 8, 16, 32]


def test_sizes_are_powers_of_two_and_the_largest():
    assert doublings(1) == [1] and doublings(8) == [1, 2, 4, 8] and doublings(25) == [1, 2, 4, 8, 16, 25]


def test_why_a_command_would_be_refused_is_known_without_running_it() -> None:
    assert refusal("gradwire train batch.size=32 launch.processes=2") is None
    words = ["batch=critical", "batch.schedule.start=24", "batch.size=128", "run.length=9600 samples"]
    reason = refusal(shlex.join(["gradwire", "train", *words]))
    assert reason is not None and "24 the batch doubles and never is 128" in reason


@pytest.mark.parametrize("place", ["/", "no/such/folder/batch.json"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(place: str) -> None:
    done = gradwire("batch-size", "--json", place, *SMALL)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert place in done.stderr
    assert "looking for" not in done.stdout
