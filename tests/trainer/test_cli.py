"""The command line: quick help, clear refusals, exit codes."""

import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from gradwire.trainer import cli
from gradwire.trainer.launch.run_directory import create
from tests.trainer.commands import gradwire

GRADWIRE = [sys.executable, "-c", "from gradwire.trainer.cli import main; main()"]


def in_a_process(*arguments, cwd=None):
    return subprocess.run([*GRADWIRE, *arguments], capture_output=True, text=True, cwd=cwd)


@pytest.fixture
def job(monkeypatch):
    """Catch the job that a command prepares instead of running it."""
    jobs = []

    def start(prepare):
        jobs.append(prepare())
        return 75

    monkeypatch.setattr("gradwire.trainer.launch.start.start", start)
    return jobs


def invoke(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


def test_help_imports_neither_torch_nor_hydra():
    code = """
import sys
from typer.testing import CliRunner
from gradwire.trainer.cli import app
CliRunner().invoke(app, ["--help"])
print(*{"torch", "hydra", "omegaconf", "numpy", "wandb", "rich"} & set(sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "\n"


def test_help_names_the_commands_and_exit_codes():
    done = in_a_process("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("train", "resume", "evaluate", "config", "tokenize", "75 preempted"))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["trian"], "'train'"),
        (["train", "--confg-dir", "x"], "--config-dir"),
        (["resume"], "RUN"),
        (["tokenize", "one"], "DST"),
    ],
)
def test_a_wrong_command_is_refused_with_2_and_a_hint(arguments, hint):
    done = gradwire(*arguments)
    assert done.returncode == 2 and hint in done.stderr and "Traceback" not in done.stderr


def test_a_wrong_key_is_refused_with_2_and_the_right_one(tmp_path):
    done = in_a_process("train", "optimizer.lrr=1", cwd=tmp_path)
    assert done.returncode == 2 and "optimizer.lr" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("run", "command"), [(in_a_process, "resume"), (gradwire, "resume"), (gradwire, "evaluate")])
def test_a_run_that_is_not_there_is_refused_with_3(tmp_path, run, command):
    done = run(command, "nothing", cwd=tmp_path)
    assert done.returncode == 3 and "No run 'nothing'" in done.stderr and "Traceback" not in done.stderr


def test_a_source_that_is_not_there_is_refused_with_2(tmp_path):
    done = gradwire("tokenize", "nothing.txt", "out.bin", cwd=tmp_path)
    assert done.returncode == 2 and "nothing.txt" in done.stderr and "Traceback" not in done.stderr


def test_tokenize_writes_a_token_file(tmp_path):
    (tmp_path / "a.txt").write_text("some text\n")
    done = gradwire("tokenize", "a.txt", "a.bin", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "a.bin").read_bytes()[:4] == b"some"


@pytest.mark.parametrize("special", ["text.bin", "text.bin.json"])
def test_tokenize_takes_the_place_of_no_device_or_pipe(tmp_path, special):
    (tmp_path / "text.txt").write_text("some text")
    os.mkfifo(tmp_path / special)
    done = gradwire("tokenize", "text.txt", "text.bin", cwd=tmp_path)
    assert done.returncode == 2 and f"{special} is not a regular file" in done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["text.txt", special])
    assert (tmp_path / special).is_fifo()


def test_config_prints_the_configuration_with_meanings():
    done = invoke("config", "run.seed=7")
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.output.splitlines() if line.strip().startswith("seed: 7")]
    assert "run.seed=7" in line


def test_train_hands_the_resolved_configuration_to_the_launch(job):
    done = invoke("train", "optimizer.lr=1e-4", "run.name=with a space-dash", "--config-dir", ".", "run.seed=3")
    assert done.exit_code == 75, done.output
    (made,) = job
    assert made.config["optimizer"]["lr"] == 1e-4 and made.config["run"]["seed"] == 3
    assert made.mode == "train" and made.restore is None and made.run_dir is None
    assert made.overrides == ("optimizer.lr=1e-4", "run.name=with a space-dash", "run.seed=3")


def test_a_repeated_command_goes_on_in_the_folder_that_the_first_one_made(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke("train", "--resume", "run.dir=here")
    create(job[0].config, [])
    invoke("train", "--resume", "run.dir=here", "optimizer.lr=0.5")
    assert [each.run_dir for each in job] == [None, tmp_path / "here"]
    assert {each.restore for each in job} == {"latest-if-any"} and job[1].config["optimizer"]["lr"] == 0.5


def test_a_repeated_command_must_say_where_it_saves(job):
    assert "--resume needs run.dir=DIR" in invoke("train", "--resume").stderr
    invoke("train", "--resume", "checkpoint.url=memory://here")
    assert job[0].run_dir is None and job[0].restore == "latest-if-any"


def test_resume_and_evaluate_name_the_checkpoint(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke("train")
    directory = create(job[0].config, [])
    invoke("resume", directory.name, "--prove")
    invoke("evaluate", f"{directory.name}@40", "launch.processes=1")
    assert [(made.mode, made.restore, made.run_dir) for made in job[1:]] == [
        ("train", "latest", directory),
        ("evaluate", "40", directory),
    ]
    assert [made.arguments for made in job[1:]] == [{"prove": 20}, {}]
    assert job[2].config["launch"]["processes"] == 1


def test_a_stored_configuration_does_not_allow_itself_targets(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke("train")
    directory = create({**job[0].config, "allow_targets": ["os."]}, [])
    assert invoke("resume", directory.name).exit_code == 75
    assert job[1].allow == ()


@pytest.mark.parametrize(
    ("typed", "updates", "overrides"),
    [
        (["runs/a", "--prove"], 20, None),
        (["runs/a", "--prove", "300", "clip=1"], 300, ["clip=1"]),
        (["runs/a", "--prove", "clip=1"], 20, ["clip=1"]),
        (["--prove=7", "runs/a"], 7, None),
        (["--prove", "runs/a"], 20, None),
        (["runs/a"], None, None),
    ],
)
def test_the_number_of_updates_to_prove_may_be_left_out(
    typed: list[str], updates: int | None, overrides: list[str] | None
) -> None:
    command = typer.main.get_command(cli.app).commands["resume"]
    values = command.make_context("resume", typed).params
    assert (values["run"], values["prove"], values["overrides"] or None) == ("runs/a", updates, overrides)
