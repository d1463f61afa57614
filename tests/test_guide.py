"""The guide to schedules: its Python runs, its YAML composes, its commands are accepted."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.trainer.config import compose, validate

GUIDE = (Path(__file__).parent.parent / "docs" / "schedules.md").read_text()


def fences(language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    return [text for kind, text in blocks if kind == language]


def commands() -> list[str]:
    return [line for block in fences("") for line in block.splitlines() if line.startswith("gradwire ")]


def test_the_python_runs(tmp_path: Path) -> None:
    script = "from gradwire.schedulers import lr\n" + "\n".join(fences("python"))
    (tmp_path / "guide.py").write_text(script)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "guide.py"], cwd=tmp_path, env=environment, check=True, timeout=120)


@pytest.mark.parametrize("command", commands())
def test_the_commands_are_accepted(command: str) -> None:
    _, verb, *overrides = shlex.split(command)
    assert verb in ("train", "plan")
    validate(compose([*overrides, "launch.processes=2"]))


def test_the_yaml_composes(tmp_path: Path) -> None:
    (tmp_path / "lr").mkdir()
    (tmp_path / "lr" / "mine.yaml").write_text(fences("yaml")[0])
    composed = compose(["lr=mine", "run.length=100 epochs"], tmp_path)
    assert validate(composed).config["lr"]["following"]["factor"] == 0.1
