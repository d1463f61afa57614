"""Every command and every listing of the README is run as it stands there, in a folder of its own."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.trainer.commands import gradwire

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent
SHORT = ["run.length=6 updates", "evaluation.limit=32", "evaluation.sample_length=4", "launch.device=cpu"]


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    lines = [line.partition(" #")[0].strip() for block in fences("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("gradwire ")]


def shell(page: str, folder: Path) -> dict[str, str]:
    """The environment of a shell in the folder, after the page's lines `export NAME=VALUE`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for name, value in re.findall(r"^export (\w+)=(\S+)", page, re.MULTILINE):
        before = os.environ.get(name, "")
        environment[name] = f"{value.replace('$PWD', str(folder))}{os.pathsep}{before}".rstrip(os.pathsep)
    return environment


def run(command: list[str], folder: Path) -> str:
    environment = shell(README, folder)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the README tells the reader to write, and the files that its commands name."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "mine.py").write_text(fences("python")[0])
    (folder / "use.py").write_text(fences("python")[1])
    experiment = folder / "my" / "experiment" / "curve.yaml"
    experiment.parent.mkdir(parents=True)
    experiment.write_text(fences("yaml")[0])
    (folder / "README.md").write_text(README)
    (folder / "docs").symlink_to(ROOT / "docs")
    return folder


def test_the_readme_names_the_commands_that_users_need() -> None:
    verbs = {command.split()[1] for command in commands()}
    names = {"train", "resume", "evaluate", "config", "tokenize", "plan", "batch-size", "bench"}
    assert verbs == names | {"generate", "sweep", "report"}


def test_the_readme_names_the_extras_that_there_are() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = README.partition("with extras as needed")[2].partition("\n\n")[0].partition("`: ")[2]
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(extras.keys() - {"docs", "test", "dev"})
    (installed,) = re.findall(r"^pip install .*\[([\w,]+)\]", README, re.MULTILINE)
    assert set(installed.split(",")) <= extras.keys()


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_every_command_runs_as_written(command: str, folder: Path) -> None:
    program, verb, *rest = shlex.split(command)
    if verb == "train":  # shortened: what a full run reaches is measured, not tested
        rest += [each for each in SHORT if not ("curve" in command and each.startswith("evaluation"))]
        if "runs/first" not in command and "comm=" not in command:
            rest.append("launch.processes=1")  # two by default, as those are
    if verb == "sweep" and rest[0] != "show":
        rest += [*SHORT, "launch.processes=1"]
    if verb == "batch-size":
        rest += ["model=decoder_1m", "model.width=32", "model.layers=1", "data.context=32", "launch.device=cpu"]
    if verb == "bench":
        rest += ["--rounds", "2"]
    if verb == "resume":
        rest = [each.replace("1200 updates", "9 updates") for each in rest]
    if verb in ("config", "plan", "tokenize", "generate", "report"):  # these start no process
        done = gradwire(verb, *rest, cwd=folder)
        assert done.returncode == 0, done.stderr
        output = done.stdout
    else:
        output = run([str(BIN / program), verb, *rest], folder)
    expected = {
        "train": "(done)",
        "resume": "(done)",
        "evaluate": '"eval/loss"',
        "config": "optimizer:",
        "tokenize": "",
        "plan": "updates",
        "batch-size": "batch.micro=",
        "bench": "two_shot",
        "generate": "def ",
        "sweep": "experiment=best",
        "report": "report.html",
    }
    assert expected[verb] in output


@pytest.mark.slow
def test_the_ten_lines_of_python_train(folder: Path) -> None:
    assert "'update': 320" in run([sys.executable, "use.py"], folder)


def test_the_mistake_shown_is_reported_as_shown() -> None:
    (listing,) = [block for block in fences("console") if "contxt" in block]
    command, *shown = listing.splitlines()
    _, *rest = shlex.split(command.removeprefix("$ "))
    done = gradwire(*rest)
    assert done.returncode == 2
    assert done.stderr.splitlines() == shown
