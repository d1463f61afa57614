"""The tutorials' files and commands, in the order of reading; what README and guides have run is not run again."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import test_guide, test_readme

ROOT = Path(__file__).parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
OWN = [
    "own_data_and_model",
    "two_hosts",
    "preemptible_machines",
]  # the first makes the job of the others
ELSEWHERE = ["first_run", "slow_network", "sweeps"]


def blocks(tutorial: str) -> list[list[str]]:
    """The lines of each block of commands."""
    text = (TUTORIALS / f"{tutorial}.md").read_text()
    return [block.splitlines() for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the tutorials tell the reader to write."""
    folder = tmp_path_factory.mktemp("tutorials")
    text = (TUTORIALS / "own_data_and_model.md").read_text()
    for name, block in re.findall(r"`([\w/.]+)`:\n\n```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(block)
    return folder


def start(line: str, folder: Path) -> subprocess.Popen[str]:
    environment = test_readme.shell((TUTORIALS / "own_data_and_model.md").read_text(), folder)
    program, *rest = shlex.split(line.removesuffix("&"), comments=True)
    command = [str(Path(sys.executable).parent / program), *rest]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def check(line: str, process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate(timeout=300)
    (expected,) = re.findall(r"# exit code (\d+)", line) or ["0"]
    assert process.returncode == int(expected), f"{line}: exit {process.returncode}\n{printed}"
    return printed


@pytest.mark.slow
def test_every_command_of_ones_own_job_runs_as_written(folder: Path) -> None:
    printed = {}
    for tutorial in OWN:
        for block in blocks(tutorial):
            running = []
            for line in block:
                if line.startswith("export "):
                    continue  # `start` does that
                process = start(line, folder)
                if line.endswith("&"):
                    running.append((line, process))
                else:
                    printed[line] = check(line, process)
            for line, process in running:
                check(line, process)
    accuracies = re.findall(r'"eval/accuracy": ([\d.]+)', (folder / "runs" / "rings" / "metrics.jsonl").read_text())
    assert float(accuracies[-1]) > 0.95
    (proved,) = (text for line, text in printed.items() if "--prove" in line)
    assert "(done)" in proved


@pytest.mark.parametrize("tutorial", ELSEWHERE)
def test_the_other_tutorials_use_commands_that_are_run_for_readme_or_guides(tutorial: str) -> None:
    known = {" ".join(shlex.split(line, comments=True)) for line in [*test_readme.commands(), *test_guide.commands()]}
    used = {" ".join(shlex.split(line, comments=True)) for block in blocks(tutorial) for line in block}
    assert used - known == set()


def test_the_scripts_of_the_libraries_are_those_of_the_examples() -> None:
    named = re.findall(r"^`(examples/\w+\.py)`:$", (TUTORIALS / "libraries.md").read_text(), re.MULTILINE)
    assert len(named) == 4
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_example*.py"))
    assert [each for each in named if Path(each).name not in tests] == []


def test_every_tutorial_is_run_here() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.md")} == {*OWN, *ELSEWHERE, "libraries"}
