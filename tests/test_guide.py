"""The guides of docs/: their Python runs, their YAML composes, their commands are accepted."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from gradwire.trainer.cli import app
from gradwire.trainer.config import compose, validate
from gradwire.trainer.config.contradictions import Machine, contradictions
from tests.trainer.commands import gradwire

BEFORE = {  # what the Python of a guide takes for granted
    "schedules": "from gradwire.schedulers import lr",
    "checkpoints": "",
    "strategies": "",
    "diloco": "",
    "inference": "",
    "elastic": "",
    "report": "",
    "communication": "from torch import nn\nmodel = nn.Linear(2, 2)",
    "deepspeed": "",
}


def fences(guide: str, *languages: str) -> list[str]:
    text = (Path(__file__).parent.parent / "docs" / f"{guide}.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [text for kind, text in blocks if kind in languages]


def commands() -> list[str]:
    blocks = (block for guide in BEFORE for block in fences(guide, "", "sh"))
    return [line for block in blocks for line in block.splitlines() if line.startswith("gradwire ")]


@pytest.mark.parametrize("guide", BEFORE)
def test_the_python_runs(tmp_path: Path, guide: str) -> None:
    (tmp_path / "guide.py").write_text("\n".join([BEFORE[guide], *fences(guide, "python")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "guide.py"], cwd=tmp_path, env=environment, check=True, timeout=300)


@pytest.mark.parametrize("command", commands())
def test_the_commands_are_accepted(command: str) -> None:
    _, verb, *rest = (word for word in shlex.split(command, comments=True) if word != "--resume")
    if verb == "plan":
        assert gradwire(verb, *rest).returncode == 0
    elif verb == "train":
        apart = {"diloco", "local_sgd"} & set(command.replace("=", " ").split())
        machine = Machine(gpus=0, processes=2, world_size=4 if apart else 2)
        validate(compose([*rest, "launch.processes=2"]), lambda config, allow: contradictions(config, allow, machine))
    elif verb in ("resume", "generate", "report"):
        typer.main.get_command(app).commands[verb].make_context(verb, rest)
    else:
        group, name, *arguments = verb, *rest
        typer.main.get_command(app).commands[group].commands[name].make_context(name, arguments)


def test_the_yaml_composes(tmp_path: Path) -> None:
    (tmp_path / "lr").mkdir()
    (tmp_path / "lr" / "mine.yaml").write_text(fences("schedules", "yaml")[0])
    composed = compose(["lr=mine", "run.length=100 epochs"], tmp_path)
    assert validate(composed).config["lr"]["following"]["factor"] == 0.1
