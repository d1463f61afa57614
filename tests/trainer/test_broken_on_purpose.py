"""Small real runs with a planted fault: one clear message, the designed exit code, nothing lost."""

import datetime
import errno
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gradwire.schedulers import Plan
from gradwire.trainer import Trainer
from gradwire.trainer.config import compose, validate
from gradwire.trainer.config.errors import ConfigError
from gradwire.trainer.data import SampleStream
from gradwire.trainer.errors import LossError, StateMismatchError
from gradwire.trainer.launch.context import open_store
from gradwire.trainer.launch.environment import Place
from gradwire.trainer.launch.errors import HostLostError
from gradwire.trainer.launch.failure import exit_code_of
from gradwire.trainer.launch.run_directory import create, write_status
from gradwire.trainer.losses import loss_for
from gradwire.trainer.optimizers import parameter_groups
from gradwire.trainer.precision import Precision

GRADWIRE = [sys.executable, "-c", "from gradwire.trainer.cli import main; main()"]
TRAIN = ["train", "--config-dir", "my", "experiment=mine"]

MINE = """
import os
import torch
from torch import nn


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: int = 64, bad: int = -1, kind: str = "") -> None:
        self.rows, self.bad, self.kind = rows, bad, kind

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int):
        x = torch.tensor([index / self.rows])
        if index == self.bad and self.kind == "exit":
            os._exit(9)
        if index == self.bad and self.kind == "shape":
            return {"x": torch.ones(2), "y": x}
        return {"x": x * float("nan") if index == self.bad else x, "y": x.clone()}


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x)


class Squared:
    def __call__(self, model, batch):
        return (model(batch["x"]) - batch["y"]).square().mean(1)
"""

EXPERIMENT = """# @package _global_
defaults:
  - override /data: null
  - override /model: null
  - override /loss: null
  - override /logger: none
  - override /optimizer: sgd
allow_targets: [mine]
run: {name: mine, length: 12 updates, dir: run}
data: {_target_: mine.Rows, rows: 64, bad: -1, kind: ''}
model: {_target_: mine.Net, width: 8}
loss: {_target_: mine.Squared}
batch: {size: 8}
launch: {device: cpu, processes: 1}
evaluation: {every: null}
checkpoint: {every: 4 updates}
"""


LATE = """
import sys
import time
if "--fork-server" in sys.orig_argv:  # what starts the ranks: they never meet
    time.sleep(300)
"""


class User:
    """A folder with the user's own classes and YAML, where commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.variables = {**os.environ, "PYTHONPATH": str(folder)}
        (folder / "mine.py").write_text(MINE)
        (folder / "my" / "experiment").mkdir(parents=True)
        (folder / "my" / "experiment" / "mine.yaml").write_text(EXPERIMENT)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*GRADWIRE, *arguments],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.fixture(scope="module")
def ascii_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[User, tuple[int, str, str]]:
    """A run to its end on a terminal without our characters; whose it is, and how it went."""
    user = User(tmp_path_factory.mktemp("ascii"))
    user.variables |= {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    return user, user.run(*TRAIN, "noise_scale.every=null")


@pytest.mark.slow
def test_a_terminal_without_our_characters_changes_nothing(ascii_run: tuple[User, tuple[int, str, str]]) -> None:
    code, out, err = ascii_run[1]
    assert (code, err) == (0, "")
    assert "run.length=?" in out


@pytest.mark.slow
def test_a_refused_resume_changes_nothing(ascii_run: tuple[User, tuple[int, str, str]]) -> None:
    user, (code, _, _) = ascii_run
    assert code == 0
    names = ("config.yaml", "overrides.txt", "status.json", "metrics.jsonl")
    before = {name: (user.run_dir / name).read_bytes() for name in names}
    code, _, err = user.run("resume", "run", "allow_targets=[mine]", "run.length=20 updates", "model.width=16")
    assert (code, "Traceback" in err) == (2, False)
    assert "the snapshot is of another model" in err
    code, _, err = user.run("resume", "run@5", "allow_targets=[mine]")
    assert (code, "Traceback" in err) == (3, False)
    assert "cannot restore update 5; it can restore 4, 8, 12" in err
    assert {name: (user.run_dir / name).read_bytes() for name in names} == before
    assert not (user.run_dir / "config-1.yaml").exists()
    assert user.run("resume", "run", "allow_targets=[mine]", "run.length=16 updates")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.bad=20", "data.kind=shape", "data.workers=1"], "Sample 20 of Rows is unlike sample"),
        (["data.rows=0"], "Rows holds no sample"),
        (["data.bad=20", "precision=fp16"], "the loss is not finite on rank 0"),
    ],
)
def test_what_a_users_class_does_wrong_is_one_message(user: User, overrides: list[str], said: str) -> None:
    code, out, err = user.run(*TRAIN, "checkpoint.every=null", *overrides)
    assert code == 1
    assert said in err
    assert "Traceback" not in err
    assert "nothing was saved yet" in out


@pytest.mark.slow
def test_a_rank_that_leaves_is_a_failure_of_the_run(user: User) -> None:
    code, out, err = user.run(*TRAIN, "data.bad=20", "data.kind=exit")
    assert code == 1
    assert "rank 0 ended with exit code 9" in err
    assert "(failed)" in out
    assert json.loads((user.run_dir / "status.json").read_text())["exit_code"] == 1


@pytest.mark.slow
def test_a_signal_before_the_workers_have_met_leaves_the_same_command_possible_and_closed_streams_change_nothing(
    user: User,
) -> None:
    (user.folder / "sitecustomize.py").write_text(LATE)
    process = user.start(*TRAIN)
    while not (user.run_dir / "status.json").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 75
    assert "run the same command again" in err
    assert not (user.run_dir / "config.yaml").exists()
    (user.folder / "sitecustomize.py").unlink()
    command = f"{shlex.join([*GRADWIRE, *TRAIN])} <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=user.folder, env=user.variables, timeout=300).returncode == 0
    assert [json.loads(line)["update"] for line in (user.run_dir / "metrics.jsonl").read_text().splitlines()] == [12]


class Pairs:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1)


def linear_trainer(kind: Any) -> Trainer:
    model = nn.Linear(1, 1)
    plan = Plan(lr=0.1, batch=2, run_length="2 updates")
    optimizer = kind(model.parameters(), lr=0.1)
    return Trainer(model, Pairs(), optimizer, plan, loss=lambda model, batch: model(batch).mean(1))


def test_an_optimizer_of_another_kind_does_not_take_the_state() -> None:
    first = linear_trainer(torch.optim.AdamW)
    first.fit()
    with pytest.raises(StateMismatchError, match="the optimizer AdamW, not SGD"):
        linear_trainer(torch.optim.SGD).restore(first.state())


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"Cannot be written \(No space left on device\): .*status\.json"):
        write_status(tmp_path, "running")


def test_a_long_name_fits_into_a_folders_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = create({"run": {"name": "\u4e2dx" * 300}}, [])
    assert directory.parent == tmp_path / "runs"


def test_a_port_that_is_taken_is_one_message() -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        here = Place(0, 1, 0, 1, "127.0.0.1", other.getsockname()[1])
        with pytest.raises(HostLostError, match=r"MASTER_PORT.*address already in use"):
            open_store(here, datetime.timedelta(seconds=5))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (3.0, "returned a float where"),
        (None, "returned a NoneType where"),
        (torch.ones(4, dtype=torch.int64), r"returned a torch\.int64 tensor where"),
        (torch.ones(4), "lead back to no parameter"),
    ],
)
def test_a_loss_that_cannot_be_trained_with_is_refused(returned: Any, said: str) -> None:
    loss = loss_for(nn.Identity(), lambda model, batch: returned)
    with pytest.raises(LossError, match=said):
        loss(nn.Identity(), {"x": torch.ones(4)})


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(StateMismatchError, match="Linear has no trainable parameter") as refusal:
        parameter_groups(nn.Linear(2, 2).requires_grad_(False), 0.1, None)
    assert exit_code_of(refusal.value) == 2


def test_the_sample_that_ends_an_iteration_is_named() -> None:
    class Ends(Pairs):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise StopIteration

    with pytest.raises(RuntimeError, match=r"StopIteration came out of sample \d of Ends, which has 4 samples"):
        SampleStream(Ends()).fetch(np.arange(2))


def test_a_scale_that_cannot_be_lowered_explains_no_overflow() -> None:
    precision = Precision("fp16", torch.device("cpu"))
    assert precision.can_lower_the_scale
    precision.load_state_dict({**precision.state_dict(), "scale": 1.0})
    assert not precision.can_lower_the_scale


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in ("ab", "bc", "cd", "de", "ef")
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'# @package _global_\nrun: {name: "\xe9"}\n', "bad.yaml: not UTF-8 text"),
        (b'# @package _global_\nrun: {name: "\x01"}\n', "not valid YAML"),
        (b"# @package _global_\nrun: &r\n  name: *r\n", "bad.yaml: its aliases contain themselves"),
        (b"# @package _global_\n" + BOMB.encode(), "bad.yaml: its aliases contain themselves"),
        (b"- a\n- b\n", "bad.yaml:1: expected KEY: VALUE lines, found a list"),
        (b"hello\n", "bad.yaml:1: expected KEY: VALUE lines, found a text"),
        (b"run: {name: x}\n", "begin the file with `# @package _global_`"),
    ],
)
def test_a_yaml_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "bad.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        validate(compose(["experiment=bad"], tmp_path))
    assert said in str(refusal.value)


def test_a_file_that_nobody_chose_may_be_anything(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="there is no model"):
        validate(compose(["model=nosuch"], tmp_path))
    validate(compose([], tmp_path))
